//! What every client needs beside the generated stubs: a channel, request ids, and pages.
//!
//! A message ends with `..Default::default()`, also if all fields are there: later versions of the contract have more.
#![allow(clippy::needless_update)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tonic::Status;
use tonic::transport::Channel;

use crate::retry::retry;
use crate::tls::endpoint;
use v1::blob_service_client::BlobServiceClient;
use v1::checkpoint_service_client::CheckpointServiceClient;
use v1::effect_service_client::EffectServiceClient;
use v1::lease_service_client::LeaseServiceClient;
use v1::record_service_client::RecordServiceClient;
use v1::signal_service_client::SignalServiceClient;
use v1::thread_service_client::ThreadServiceClient;
use v1::writer_service_client::WriterServiceClient;
use v1::{edit, save_request, value, value_chunk};

/// The generated messages and stubs.
#[allow(clippy::all, dead_code)]
pub mod v1 {
    tonic::include_proto!("stateward.v1");
}

const MAX_MESSAGE_BYTES: usize = 64 << 20; // default: 4 MiB

/// A thread as one agent sees it: the daemon's services, and the version that the agent builds on.
pub struct Thread {
    pub name: String,
    pub holder: v1::Holder,
    pub version: i64,
    pub digest: Vec<u8>,
    /// Of the thread that was read or saved: a later thread of the same name has another one.
    pub uid: String,
    pub blobs: BlobServiceClient<Channel>,
    pub checkpoints: CheckpointServiceClient<Channel>,
    pub effects: EffectServiceClient<Channel>,
    pub leases: LeaseServiceClient<Channel>,
    pub records: RecordServiceClient<Channel>,
    pub signals: SignalServiceClient<Channel>,
    pub threads: ThreadServiceClient<Channel>,
    pub writers: WriterServiceClient<Channel>,
}

/// What `Thread::hydrate` reads.
#[derive(Default)]
pub struct Hydrated {
    pub slots: HashMap<String, v1::Value>,
    pub logs: HashMap<String, v1::Log>,
    pub version: i64,
    pub digest: Vec<u8>,
    pub uid: String,
    pub signals: Vec<v1::Signal>,
    pub pages: usize,
}

impl Thread {
    /// Opens a channel, which connects with the first call, and again when the connection was lost.
    pub fn open(target: &str, name: &str) -> Result<Self, tonic::transport::Error> {
        let channel = endpoint(target)?.connect_lazy();
        Ok(Self {
            name: name.to_owned(),
            holder: v1::Holder { name: "agent".into(), incarnation: new_id(), ..Default::default() },
            version: 0,
            digest: Vec::new(),
            uid: String::new(),
            blobs: BlobServiceClient::new(channel.clone()),
            checkpoints: CheckpointServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES),
            effects: EffectServiceClient::new(channel.clone()),
            leases: LeaseServiceClient::new(channel.clone()),
            records: RecordServiceClient::new(channel.clone()),
            signals: SignalServiceClient::new(channel.clone()),
            threads: ThreadServiceClient::new(channel.clone()),
            writers: WriterServiceClient::new(channel),
        })
    }

    /// Makes a request with these edits, which the daemon saves only on top of the version that the agent knows, and
    /// only to the thread that it knows: if that was deleted, the request does not bring it back.
    pub fn next(&self, edits: Vec<edit::Edit>) -> v1::SaveRequest {
        let edits = edits.into_iter().map(|edit| v1::Edit { edit: Some(edit), ..Default::default() }).collect();
        v1::SaveRequest {
            thread: self.name.clone(),
            options: Some(v1::WriteOptions {
                expected_version: Some(self.version),
                expected_digest: self.digest.clone(),
                expected_uid: self.uid.clone(),
                ..new_options()
            }),
            content: Some(save_request::Content::Diff(v1::Diff { edits, ..Default::default() })),
            ..Default::default()
        }
    }

    /// Saves, and remembers the new head.
    pub async fn save(&mut self, request: &v1::SaveRequest) -> Result<v1::SaveResponse, Status> {
        let saved = retry(request, async |request| self.checkpoints.clone().save(request).await).await?;
        self.remember(&saved);
        Ok(saved)
    }

    /// Builds on this version from now on.
    pub fn remember(&mut self, saved: &v1::SaveResponse) {
        let receipt = saved.receipt.clone().unwrap_or_default();
        (self.version, self.digest, self.uid) = (saved.version, receipt.digest, receipt.uid);
    }

    /// Reads the head, joins its pages, and remembers its version. Returns the signals that wait, too.
    pub async fn hydrate(&mut self) -> Result<Hydrated, Status> {
        self.hydrate_since(&Hydrated::default()).await
    }

    /// Reads what has changed since a state that was read whole, and returns the state of the head.
    pub async fn hydrate_since(&mut self, known: &Hydrated) -> Result<Hydrated, Status> {
        let mut all = Hydrated::default();
        let mut pieces = Vec::new();
        let mut request = v1::HydrateRequest {
            thread: self.name.clone(),
            include_signals: true,
            known_version: known.version,
            known_digest: known.digest.clone(),
            ..Default::default()
        };
        loop {
            let page = retry(&request, async |request| self.checkpoints.clone().hydrate(request).await).await?;
            if all.pages == 0 && page.base_version != 0 {
                // Else the answer is the whole state.
                (all.slots, all.logs) = (known.slots.clone(), known.logs.clone());
            }
            all.slots.retain(|name, _| !page.removed_slots.contains(name));
            all.logs.retain(|name, _| !page.removed_logs.contains(name));
            all.pages += 1;
            all.signals.extend(page.signals);
            let state = page.state.unwrap_or_default();
            all.slots.extend(state.slots);
            for (name, part) in state.logs {
                match all.logs.entry(name) {
                    Entry::Occupied(mut log) => {
                        // It goes on.
                        log.get_mut().entries.extend(part.entries);
                        log.get_mut().rewritten_version = part.rewritten_version;
                    }
                    Entry::Vacant(place) => drop(place.insert(part)),
                }
            }
            if let Some(piece) = page.chunk {
                // A piece of a value that is larger than a page.
                pieces.extend(piece.data);
                if pieces.len() as i64 == piece.size_bytes {
                    let content = Some(value::Content::Data(std::mem::take(&mut pieces)));
                    let value = v1::Value { media_type: piece.media_type, content, ..Default::default() };
                    match piece.place {
                        Some(value_chunk::Place::Log(name)) => all.logs.entry(name).or_default().entries.push(value),
                        Some(value_chunk::Place::Slot(name)) => drop(all.slots.insert(name, value)),
                        None => return Err(Status::internal("a chunk without a place")),
                    }
                }
            }
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                let head = page.checkpoint.unwrap_or_default();
                (self.version, self.digest, self.uid) = (head.version, head.digest.clone(), head.uid.clone());
                (all.version, all.digest, all.uid) = (head.version, head.digest, head.uid);
                return Ok(all);
            }
        }
    }
}

/// Makes a request id. All attempts of a request have the same one.
pub fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Makes the options of a write that is safe to repeat.
pub fn new_options() -> v1::WriteOptions {
    v1::WriteOptions { request_id: new_id(), ..Default::default() }
}

impl v1::SaveRequest {
    /// Changes the options of a request.
    pub fn with_options(mut self, change: impl FnOnce(&mut v1::WriteOptions)) -> Self {
        change(self.options.get_or_insert_default());
        self
    }
}

pub fn set(slot: &str, value: v1::Value) -> edit::Edit {
    edit::Edit::SetSlot(v1::SetSlot { slot: slot.into(), value: Some(value), ..Default::default() })
}

pub fn add(log: &str, entries: Vec<v1::Value>) -> edit::Edit {
    edit::Edit::Append(v1::Append { log: log.into(), entries, ..Default::default() })
}

pub fn add_number(slot: &str, delta: i64) -> edit::Edit {
    edit::Edit::AddNumber(v1::AddNumber { slot: slot.into(), delta, ..Default::default() })
}

pub fn text(words: &str) -> v1::Value {
    v1::Value {
        media_type: "text/plain".into(),
        content: Some(value::Content::Data(words.into())),
        ..Default::default()
    }
}

pub fn binary(data: Vec<u8>) -> v1::Value {
    v1::Value {
        media_type: "application/octet-stream".into(),
        content: Some(value::Content::Data(data)),
        ..Default::default()
    }
}

/// Returns the bytes of a value; none if it is a blob or a number.
pub fn data(value: &v1::Value) -> &[u8] {
    match &value.content {
        Some(value::Content::Data(data)) => data,
        _ => &[],
    }
}
