//! Plays the client of a scenario of `stateward conformance`; docs/protocol.md says what each procedure does.
#![allow(clippy::needless_update)] // as in client.rs

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::time::sleep;
use tonic::Status;

use crate::client::v1::{self, edit, journal_event, value};
use crate::client::{Hydrated, Thread, add_number, data, new_options, set, text};
use crate::retry::{explain, has_reason, retry};
use crate::work::{Held, call_once, get_records, holding, list_keys, put_record};
use crate::{streams, writer};

/// Runs a scenario. Returns the exit code: 77 if this client does not have its procedure.
pub async fn conform(target: &str, scenario: &str) -> Result<i32, Box<dyn Error>> {
    let thread = &mut Thread::open(target, &format!("conformance/{scenario}"))?;
    let done = match scenario.split('/').next() {
        Some("advance") => advance(thread).await,
        Some("since") => since(thread).await,
        Some("splice") => splice(thread).await,
        Some("count") => count(thread).await,
        Some("watch") => watch(thread).await,
        Some("write-blob") => write_blob(thread).await,
        Some("read-blob") => read_blob(thread).await,
        Some("writer") => {
            let frames = ["1", "2", "3", "4"].map(|words| set("seen", text(words)));
            writer::stream(thread, frames.into()).await.map(drop)
        }
        Some("lease") => lease(thread).await,
        Some("guard") => guard(thread).await,
        Some("effect") => effect(thread).await,
        Some("ask") => ask(thread).await,
        Some("answer") => answer(thread).await,
        Some("record") => record(thread).await,
        Some("records") => records(thread).await,
        _ => return Ok(77),
    };
    if let Err(status) = done {
        put(thread, set("error", text(&reason(&status)))).await?;
    }
    Ok(0)
}

async fn advance(thread: &mut Thread) -> Result<(), Status> {
    loop {
        let state = match thread.hydrate().await {
            Err(status) if has_reason(&status, "THREAD_NOT_FOUND") => Hydrated::default(), // a new thread
            read => read?,
        };
        match save_digest(thread, &state).await {
            Err(status) if has_reason(&status, "VERSION_MISMATCH") => {} // read the new head, and save on top of it
            done => return done,
        }
    }
}

async fn since(thread: &mut Thread) -> Result<(), Status> {
    let known = thread.hydrate().await?;
    let state = thread.hydrate_since(&known).await?;
    save_digest(thread, &state).await
}

async fn splice(thread: &mut Thread) -> Result<(), Status> {
    let state = thread.hydrate().await?;
    let text = data(&state.slots["text"]);
    let offset = text.windows(5).position(|bytes| bytes == b"Paris").expect("Paris is in it");
    let splices = vec![v1::Splice { offset: offset as i64, delete: 5, insert: b"Rome".into(), ..Default::default() }];
    let base_sha256 = Sha256::digest(text).to_vec();
    let edit =
        edit::Edit::SpliceSlot(v1::SpliceSlot { slot: "text".into(), base_sha256, splices, ..Default::default() });
    thread.save(&thread.next(vec![edit])).await.map(drop)
}

async fn count(thread: &mut Thread) -> Result<(), Status> {
    let added = thread.save(&any_version(thread, add_number("count", 9_007_199_254_740_993))).await?;
    put(thread, set("seen", text(&added.numbers["count"].to_string()))).await
}

async fn watch(thread: &mut Thread) -> Result<(), Status> {
    let mut seen = Vec::new();
    streams::watch(thread, 0, |event| {
        seen.push(event.sequence.to_string());
        !matches!(event.what, Some(journal_event::What::Checkpoint(saved)) if saved.status() == v1::WorkStatus::Completed)
    })
    .await?;
    put(thread, set("seen", text(&seen.join(",")))).await
}

async fn write_blob(thread: &mut Thread) -> Result<(), Status> {
    let bytes: Vec<u8> = (0..2_500_000).map(|place| (place % 251) as u8).collect();
    let blob = streams::write_blob(thread, &bytes).await?;
    let content = Some(value::Content::Blob(blob));
    put(thread, set("file", v1::Value { media_type: "application/octet-stream".into(), content, ..Default::default() }))
        .await
}

async fn read_blob(thread: &mut Thread) -> Result<(), Status> {
    let mut state = thread.hydrate().await?;
    let Some(value::Content::Blob(blob)) = state.slots.remove("file").and_then(|file| file.content) else {
        return Err(Status::internal("the slot is no blob"));
    };
    let bytes = streams::read_blob(thread, blob).await?;
    let seen = set("seen", text(&format!("{:x}", Sha256::digest(bytes))));
    thread.save(&thread.next(vec![seen])).await.map(drop)
}

async fn lease(thread: &mut Thread) -> Result<(), Status> {
    let name = thread.name.clone();
    let done = holding(thread, &name, Duration::from_secs(1), async |thread, lease| {
        sleep(Duration::from_secs(2)).await;
        if lease.lost.get().is_none() {
            let save = any_version(thread, set("seen", text("held")));
            thread.save(&save.with_options(|options| options.lease_token = lease.token)).await?;
        }
        Ok(())
    });
    match done.await {
        Err(status) if has_reason(&status, "LEASE_HELD") => Ok(()), // another holder has the thread
        done => done,
    }
}

async fn guard(thread: &mut Thread) -> Result<(), Status> {
    let lock = format!("locks/{}", thread.name);
    let save = async |thread: &mut Thread, lease: &Held| {
        let expected_uid = lease.uid.clone();
        let guard = v1::LeaseGuard { thread: lock.clone(), token: lease.token, expected_uid, ..Default::default() };
        let save = v1::SaveRequest { guard: Some(guard), ..any_version(thread, set("seen", text("guarded"))) };
        thread.save(&save).await.map(drop)
    };
    holding(thread, &lock, Duration::from_secs(30), save).await
}

async fn effect(thread: &mut Thread) -> Result<(), Status> {
    let (tool, check) = (async |_: &str| text("paid"), async |_: &str| Some(text("found")));
    let (value, _) = call_once(thread, "", "pay", tool, check).await?;
    put(thread, set("seen", value)).await
}

async fn ask(thread: &mut Thread) -> Result<(), Status> {
    thread.hydrate().await?;
    let mut question = v1::SaveRequest { wait_id: "budget".into(), ..thread.next(vec![]) };
    question.set_status(v1::WorkStatus::Waiting);
    question.question = Some(v1::Question { prompt: "May it cost 300?".into(), ..Default::default() });
    thread.save(&question).await?;
    loop {
        let state = thread.hydrate().await?;
        if let Some(answer) = state.signals.into_iter().find(|signal| signal.wait_id == "budget") {
            let mut save = thread.next(vec![set("seen", answer.payload.unwrap_or_default())]);
            save.ack_signals.push(answer.signal_id); // in the save that uses the answer
            return thread.save(&save).await.map(drop);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn answer(thread: &mut Thread) -> Result<(), Status> {
    let request = v1::SendSignalRequest {
        thread: thread.name.clone(),
        options: Some(new_options()),
        name: "answer".into(),
        wait_id: "budget".into(),
        payload: Some(text("yes")),
        ..Default::default()
    };
    retry(&request, async |request| thread.signals.clone().send_signal(request).await).await.map(drop)
}

async fn record(thread: &mut Thread) -> Result<(), Status> {
    loop {
        let found = get_records(thread, vec!["count".into()]).await?.remove("count").unwrap_or_default();
        let words = String::from_utf8_lossy(data(found.value.as_ref().unwrap_or(&v1::Value::default()))).into_owned();
        let number = words.parse::<i64>().unwrap_or(0) + 1; // 1 if there is no record
        match put_record(thread, "count", text(&number.to_string()), found.revision).await {
            Err(status) if has_reason(&status, "RECORD_CONFLICT") => {}
            done => return done,
        }
    }
}

async fn records(thread: &mut Thread) -> Result<(), Status> {
    let keys = list_keys(thread, "users/").await?;
    let found = get_records(thread, keys.clone()).await?;
    let seen = keys.iter().filter_map(|key| {
        let words = String::from_utf8_lossy(data(found.get(key)?.value.as_ref()?)).into_owned();
        Some(format!("{key}={words}"))
    });
    put(thread, set("seen", text(&seen.collect::<Vec<_>>().join(",")))).await
}

async fn save_digest(thread: &mut Thread, state: &Hydrated) -> Result<(), Status> {
    (thread.version, thread.digest, thread.uid) = (state.version, state.digest.clone(), state.uid.clone());
    thread.save(&thread.next(vec![set("seen", text(&digest(state)))])).await.map(drop)
}

/// Saves an edit on top of any version.
async fn put(thread: &mut Thread, edit: edit::Edit) -> Result<(), Status> {
    thread.save(&any_version(thread, edit)).await.map(drop)
}

fn any_version(thread: &Thread, edit: edit::Edit) -> v1::SaveRequest {
    thread.next(vec![edit]).with_options(|options| (options.expected_version, options.expected_digest) = (None, vec![]))
}

/// Returns the daemon's reason, or else the name of the status code, such as NOT_FOUND.
fn reason(status: &Status) -> String {
    let (reason, _) = explain(status);
    if !reason.is_empty() {
        return reason;
    }
    let words = format!("{:?}", status.code()).chars().fold(String::new(), |mut words, letter| {
        if letter.is_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.push(letter);
        words
    });
    words.to_uppercase()
}

/// Returns the SHA-256 of the state's canonical form, in hexadecimal.
fn digest(state: &Hydrated) -> String {
    let mut form = Vec::new();
    for (name, slot) in BTreeMap::from_iter(&state.slots) {
        add(&mut form, "slot");
        add(&mut form, name);
        add_value(&mut form, slot);
    }
    for (name, log) in BTreeMap::from_iter(&state.logs) {
        add(&mut form, "log");
        add(&mut form, name);
        for number in [log.first_index(), log.rewritten_version, log.entries.len() as i64] {
            add(&mut form, number.to_string());
        }
        log.entries.iter().for_each(|entry| add_value(&mut form, entry));
    }
    format!("{:x}", Sha256::digest(form))
}

fn add_value(form: &mut Vec<u8>, value: &v1::Value) {
    let (kind, content) = match value.content.clone() {
        Some(value::Content::Data(data)) => ("data", data),
        Some(value::Content::Number(number)) => ("number", number.to_string().into()),
        Some(value::Content::Blob(blob)) => ("blob", blob.sha256),
        None => ("", Vec::new()),
    };
    add(form, &value.media_type);
    add(form, kind);
    add(form, content);
}

/// Adds a field: its length, a colon, its bytes.
fn add(form: &mut Vec<u8>, field: impl AsRef<[u8]>) {
    let field = field.as_ref();
    form.extend(format!("{}:", field.len()).bytes());
    form.extend(field);
}
