//! A writer's stream: the fastest way to save many versions.

use std::error::Error;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::client::v1::write_request::Frame;
use crate::client::v1::write_response::Frame as Answer;
use crate::client::v1::{OpenWriter, WriteRequest, WriterSave, edit};
use crate::client::{Thread, new_id};

/// Saves each edit as one version. The stream holds the lease, so frames are sent before the answers to earlier ones
/// come. Returns the first and the last version.
pub async fn stream(thread: &mut Thread, frames: Vec<edit::Edit>) -> Result<(i64, i64), Box<dyn Error>> {
    let (sender, receiver) = mpsc::channel(frames.len() + 1);
    let open = OpenWriter {
        thread: thread.name.clone(),
        holder: Some(thread.holder.clone()),
        term: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        request_id: new_id(),
        ..Default::default()
    };
    // The first frame goes into the channel before the call: tonic returns from it when the daemon answers.
    sender.send(WriteRequest { frame: Some(Frame::Open(open)) }).await?;
    let mut answers = thread.writers.write(ReceiverStream::new(receiver)).await?.into_inner();
    let Some(Answer::Opened(opened)) = answers.message().await?.and_then(|answer| answer.frame) else {
        return Err("the stream did not open".into());
    };
    let (head, count) = (opened.last_version(), frames.len());
    let token = opened.lease.unwrap_or_default().token;
    for (version, edit) in (head..).zip(frames) {
        let mut save = thread.next(vec![edit]);
        save.thread.clear();
        save.expected_digest.clear();
        (save.lease_token, save.expected_version) = (token, Some(version));
        let frame = WriterSave { frame: version + 1, save: Some(save), awaited: false };
        sender.send(WriteRequest { frame: Some(Frame::Save(frame)) }).await?;
    }
    for _ in 0..count {
        match answers.message().await?.and_then(|answer| answer.frame) {
            Some(Answer::Saved(saved)) => {
                let saved = saved.save.unwrap_or_default();
                (thread.version, thread.digest) = (saved.version, saved.digest);
            }
            Some(Answer::Refused(refused)) => {
                return Err(format!("{}: {}", refused.reason_name, refused.message).into());
            }
            _ => return Err("the stream ended".into()),
        }
    }
    drop(sender); // ends the stream
    answers.message().await?; // the daemon has taken the lease back when it ends the stream, too
    Ok((head + 1, thread.version))
}
