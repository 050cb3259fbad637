//! An agent that keeps its state in Stateward. Its steps are those of ../../agent.md.

mod client;
mod conformance;
mod retry;
mod streams;
mod tls;
mod work;
mod writer;

use sha2::{Digest, Sha256};
use std::{env, error::Error, time::Duration};

use client::{Thread, add, add_number, binary, data, new_options, set, text, v1};
use retry::{explain, retry};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result {
    let target = env::var("STATEWARD_TARGET").map_err(|_| "STATEWARD_TARGET is not set")?;
    let phase = env::args().nth(1).unwrap_or_default();
    if phase.contains('/') {
        std::process::exit(conformance::conform(&target, &phase).await?); // a scenario of `stateward conformance`
    }
    let mut thread = Thread::open(&target, &env::var("STATEWARD_THREAD").unwrap_or("example-rust".into()))?;
    match phase.as_str() {
        "begin" => begin(&mut thread).await,
        "answer" => answer(&thread).await,
        "resume" => resume(&mut thread).await,
        "count" => count(&mut thread).await,
        _ => Err("usage: agent begin|answer|resume|count".into()),
    }
}

async fn begin(thread: &mut Thread) -> Result {
    let first = thread.next(vec![set("goal", text("a room in Paris"))]);
    println!("created version {}", thread.save(&first).await?.version);
    let second = thread.next(vec![add("messages", vec![text("hello")])]);
    println!("saved version {}", thread.save(&second).await?.version);

    let late = thread.next(vec![add("messages", vec![text("too late")])]);
    let late = late.with_options(|options| (options.expected_version, options.expected_digest) = (Some(1), vec![]));
    if let Err(status) = thread.save(&late).await {
        let (reason, facts) = explain(&status);
        println!("conflict {reason} at version {}", facts["current_version"]);
    }

    // A conflict is resolved on the newest state: read it, make the change again, save again.
    let known = thread.hydrate().await?.logs["messages"].entries.len();
    let again = thread.next(vec![add("messages", vec![text(&format!("message {known}"))])]);
    println!("resolved as version {}", thread.save(&again).await?.version);
    let replay = thread.save(&again).await?;
    if replay.receipt.is_some_and(|receipt| receipt.replayed) {
        println!("replayed version {}", replay.version);
    }

    let name = thread.name.clone();
    work::holding(thread, &name, Duration::from_secs(60), async |thread, lease| {
        if let Err(status) = thread.save(&thread.next(vec![set("lease", text("free"))])).await {
            println!("refused {}", explain(&status).0);
        }
        let held = thread.next(vec![set("lease", text("held"))]);
        let held = held.with_options(|options| options.lease_token = lease.token);
        println!("leased version {}", thread.save(&held).await?.version);
        Ok(())
    })
    .await?;

    let frames = (1..=10).map(|number| add("messages", vec![text(&format!("frame {number}"))])).collect();
    let (first, last) = writer::stream(thread, frames).await?;
    println!("streamed versions {first} to {last}");
    pay(thread).await?;

    let document: String = (0..1 << 19).map(|number| format!("{number:08}")).collect();
    let pages: Vec<_> = (0..32).map(|number| format!("{number:08}").repeat(8192).into_bytes()).collect();
    let bytes = document.len() + pages.iter().map(Vec::len).sum::<usize>();
    let pages = pages.into_iter().map(binary).collect();
    let large = thread.next(vec![set("document", binary(document.into())), add("pages", pages)]);
    println!("wrote {bytes} bytes as version {}", thread.save(&large).await?.version);

    let mut ask = thread.next(vec![]);
    ask.set_status(v1::WorkStatus::Waiting);
    ask.wait_id = "approve-room".into();
    ask.question = Some(v1::Question { prompt: "Book the room?".into(), ..Default::default() });
    println!("waiting at version {}", thread.save(&ask).await?.version);
    std::future::pending().await // until it is killed
}

/// Pays unless an earlier run has paid.
async fn pay(thread: &Thread) -> Result {
    let bank = async |_idempotency_key: &str| match env::var("STATEWARD_BANK") {
        Ok(slow) => text(&tokio::fs::read_to_string(slow).await.unwrap_or_default()),
        Err(_) => text("receipt 17"), // here an agent calls its bank
    };
    let check = async |_idempotency_key: &str| None; // and here it asks whether it has paid
    let (receipt, state) = work::call_once(thread, "booking", "pay", bank, check).await?;
    let words = if state == v1::EffectState::New { "paid" } else { str::from_utf8(data(&receipt))? };
    println!("effect {}: {words}", state.as_str_name().trim_start_matches("EFFECT_STATE_"));
    Ok(())
}

async fn answer(thread: &Thread) -> Result {
    let request = v1::SendSignalRequest {
        thread: thread.name.clone(),
        options: Some(new_options()),
        name: "approve".into(),
        payload: Some(text("yes")),
        sender: "ana".into(),
        wait_id: "approve-room".into(),
        ..Default::default()
    };
    retry(&request, async |request| thread.signals.clone().send_signal(request).await).await?;
    println!("answered approve-room");
    Ok(())
}

async fn resume(thread: &mut Thread) -> Result {
    let state = thread.hydrate().await?;
    let mut all = data(&state.slots["document"]).to_vec();
    state.logs["pages"].entries.iter().for_each(|page| all.extend(data(page)));
    let (pages, bytes, sha256) = (state.pages, all.len(), Sha256::digest(&all));
    println!("hydrated version {} in {pages} pages: {bytes} bytes, sha256 {sha256:x}", thread.version);
    pay(thread).await?;
    let mut booked = thread.next(vec![add("messages", vec![text("booked")])]);
    booked.set_status(v1::WorkStatus::Completed);
    for signal in state.signals.into_iter().filter(|signal| signal.wait_id == "approve-room") {
        let payload = signal.payload.unwrap_or_default();
        println!("answer {} from {}", str::from_utf8(data(&payload))?, signal.sender);
        booked.ack_signals.push(signal.signal_id);
    }
    println!("completed version {}", thread.save(&booked).await?.version);
    Ok(())
}

async fn count(thread: &mut Thread) -> Result {
    let (mut counted, mut replayed) = (0, 0);
    for number in 1..=400 {
        let mut request = thread.next(vec![add_number("count", 1)]);
        (request.thread, request.options) = (format!("{}-count", thread.name), Some(new_options()));
        let saved = thread.save(&request).await?;
        counted = saved.numbers["count"];
        replayed += i32::from(saved.receipt.is_some_and(|receipt| receipt.replayed));
        if number % 100 == 0 {
            println!("saved {number}");
        }
    }
    println!("counted {counted}, replayed {replayed}");
    Ok(())
}
