//! Plays the client of a scenario of `stateward conformance`; docs/protocol.md says what each procedure does.

use std::collections::BTreeMap;
use std::error::Error;

use sha2::{Digest, Sha256};
use tonic::Status;

use crate::client::v1::{self, edit, save_request, value};
use crate::client::{Hydrated, Thread, data, new_id, set, text};
use crate::retry::{explain, retry};

/// Runs a scenario. Returns the exit code: 77 if this client does not have its procedure.
pub async fn conform(target: &str, scenario: &str) -> Result<i32, Box<dyn Error>> {
    let mut thread = Thread::open(target, &format!("conformance/{scenario}"))?;
    match scenario.split('/').next() {
        Some("advance") => advance(&mut thread).await?,
        Some("splice") => splice(&mut thread).await?,
        Some("count") => count(&thread).await?,
        _ => return Ok(77),
    }
    Ok(0)
}

async fn advance(thread: &mut Thread) -> Result<(), Status> {
    loop {
        match save_digest(thread).await {
            Ok(()) => return Ok(()),
            Err(status) if reason(&status) == "VERSION_MISMATCH" => {} // read the new head, and save on top of it
            Err(status) => return put(thread, set("error", text(&reason(&status)))).await.map(drop),
        }
    }
}

async fn splice(thread: &mut Thread) -> Result<(), Box<dyn Error>> {
    let state = thread.hydrate().await?;
    let text = data(&state.slots["text"]);
    let offset = text.windows(5).position(|bytes| bytes == b"Paris").ok_or("no Paris")?;
    let splices = vec![v1::Splice { offset: offset as i64, delete: 5, insert: b"Rome".into() }];
    let base_sha256 = Sha256::digest(text).to_vec();
    let edit = edit::Edit::SpliceSlot(v1::SpliceSlot { slot: "text".into(), base_sha256, splices });
    thread.save(&thread.next(vec![edit])).await?;
    Ok(())
}

async fn count(thread: &Thread) -> Result<(), Status> {
    let delta = 9_007_199_254_740_993;
    let added = put(thread, edit::Edit::AddNumber(v1::AddNumber { slot: "count".into(), delta })).await?;
    put(thread, set("seen", text(&added.numbers["count"].to_string()))).await.map(drop)
}

/// Saves the digest of the state, or of the empty state of a new thread.
async fn save_digest(thread: &mut Thread) -> Result<(), Status> {
    let state = match thread.hydrate().await {
        Err(status) if reason(&status) == "THREAD_NOT_FOUND" => Hydrated::default(),
        read => read?,
    };
    thread.save(&thread.next(vec![set("seen", text(&digest(&state)))])).await.map(drop)
}

/// Saves an edit on top of any version.
async fn put(thread: &Thread, edit: edit::Edit) -> Result<v1::SaveResponse, Status> {
    let edits = vec![v1::Edit { edit: Some(edit) }];
    let request = v1::SaveRequest {
        thread: thread.name.clone(),
        request_id: new_id(),
        content: Some(save_request::Content::Diff(v1::Diff { edits })),
        ..Default::default()
    };
    retry(&request, async |request| thread.checkpoints.clone().save(request).await).await
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
