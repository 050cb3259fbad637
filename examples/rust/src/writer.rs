//! A writer's stream: the fastest way to save many versions.
#![allow(clippy::needless_update)] // as in client.rs

use std::collections::VecDeque;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;

use crate::client::v1::write_request::Frame;
use crate::client::v1::write_response::Frame as Answer;
use crate::client::v1::{OpenWriter, ResetWriter, WriteOptions, WriteRequest, WriterSave, edit};
use crate::client::{Thread, new_options};
use crate::retry::{has_reason, refusal, repeat};

/// Saves each edit as one version. The edits must fit any state. The stream holds the lease, so frames are sent before the
/// answers to earlier ones come. Returns the first and the last version.
pub async fn stream(thread: &mut Thread, edits: Vec<edit::Edit>) -> Result<(i64, i64), Status> {
    let opening = OpenWriter {
        thread: thread.name.clone(),
        options: Some(WriteOptions { expected_uid: thread.uid.clone(), ..new_options() }),
        holder: Some(thread.holder.clone()),
        term: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        ..Default::default()
    };
    let refused = edits.into();
    let mut writer = Writer { thread, opening, token: 0, first: 0, number: 0, sent: VecDeque::new(), refused };
    repeat(async || writer.run().await).await?;
    Ok((writer.first, writer.thread.version))
}

/// The frames of a stream, across all its connections.
struct Writer<'a> {
    thread: &'a mut Thread,
    opening: OpenWriter,
    token: i64,
    first: i64,
    /// Of the last frame.
    number: i64,
    /// Not answered yet.
    sent: VecDeque<(WriterSave, edit::Edit)>,
    /// To be sent anew.
    refused: VecDeque<edit::Edit>,
}

impl Writer<'_> {
    /// Runs one connection, until every frame is answered.
    async fn run(&mut self) -> Result<(), Status> {
        let (sender, receiver) = unbounded_channel();
        let mut sender = Some(sender);
        // The first frame goes into the channel before the call: tonic returns from it when the daemon answers.
        send(&sender, Frame::Open(self.opening.clone())); // the same lease as before
        let mut writers = self.thread.writers.clone();
        let mut answers = writers.write(UnboundedReceiverStream::new(receiver)).await?.into_inner();
        while let Some(answer) = answers.message().await? {
            self.take(&sender, answer.frame)?;
            if self.sent.is_empty() && self.refused.is_empty() {
                sender = None; // ends the stream: the daemon takes the lease back, and ends it, too
            }
        }
        Ok(())
    }

    fn take(&mut self, sender: &Option<UnboundedSender<WriteRequest>>, answer: Option<Answer>) -> Result<(), Status> {
        match answer {
            Some(Answer::Opened(opened)) => {
                let last_version = opened.last_version;
                let token = opened.lease.as_ref().map_or(0, |lease| lease.token);
                if self.token != 0 && self.token != token {
                    return Err(Status::aborted("the lease was lost: another writer may have saved"));
                }
                self.token = token;
                let uid = opened.receipt.unwrap_or_default().uid;
                self.opening.options.get_or_insert_default().expected_uid = uid;
                self.first = if self.first == 0 { last_version + 1 } else { self.first };
                if !self.refused.is_empty() {
                    // Nothing that follows a refused frame was saved.
                    self.refused.extend(self.sent.drain(..).map(|(_, edit)| edit));
                }
                for (frame, _) in &self.sent {
                    send(sender, Frame::Save(frame.clone())); // the same again
                }
                self.send_anew(sender, last_version);
            }
            Some(Answer::Saved(saved)) => {
                self.sent.pop_front(); // frames are answered in order
                self.thread.remember(&saved.save.unwrap_or_default());
            }
            Some(Answer::Refused(refused)) => {
                let status = refusal(refused.status.unwrap_or_default());
                if !has_reason(&status, "VERSION_MISMATCH") && !has_reason(&status, "WRITER_ABORTED") {
                    return Err(status);
                }
                if self.refused.is_empty() {
                    send(sender, Frame::Reset(ResetWriter::default())); // until the reset, the daemon refuses every frame
                }
                self.refused.extend(self.sent.pop_front().map(|(_, edit)| edit));
            }
            Some(Answer::Reset(reset)) => self.send_anew(sender, reset.last_version),
            None => {} // of a later version of the contract
        }
        Ok(())
    }

    /// Sends the refused edits as new frames on top of a version.
    fn send_anew(&mut self, sender: &Option<UnboundedSender<WriteRequest>>, version: i64) {
        for (version, edit) in (version..).zip(std::mem::take(&mut self.refused)) {
            let mut save = self.thread.next(vec![edit.clone()]).with_options(|options| {
                (options.expected_version, options.expected_digest) = (Some(version), vec![]);
                options.lease_token = self.token;
            });
            save.thread.clear();
            self.number += 1;
            let frame = WriterSave { frame: self.number, save: Some(save), ..Default::default() };
            send(sender, Frame::Save(frame.clone()));
            self.sent.push_back((frame, edit));
        }
    }
}

/// A stream that has ended takes no more frames; the next answer says why it has ended.
fn send(sender: &Option<UnboundedSender<WriteRequest>>, frame: Frame) {
    if let Some(sender) = sender {
        let _ = sender.send(WriteRequest { frame: Some(frame), ..Default::default() });
    }
}
