//! Streams that go on after a break: watches, and blobs in both directions.
#![allow(clippy::needless_update)] // as in client.rs

use sha2::{Digest, Sha256};
use tokio::time::sleep;
use tonic::Status;

use crate::client::Thread;
use crate::client::v1::{self, write_blob_request::Part};
use crate::retry::{pause_after, repeat};

const MESSAGE_BYTES: usize = 1 << 20;

/// Follows the events of the thread after a sequence until `take` returns false. A watch that breaks goes on after the last
/// cursor, for as long as it takes.
pub async fn watch(thread: &Thread, after: i64, mut take: impl FnMut(v1::JournalEvent) -> bool) -> Result<(), Status> {
    let mut request =
        v1::WatchRequest { thread: thread.name.clone(), after_sequence: Some(after), ..Default::default() };
    let mut attempt = 0;
    loop {
        let cursor = request.after_cursor.clone();
        match follow(thread, &mut request, &mut take).await {
            Ok(()) => return Ok(()),
            Err(status) => {
                attempt = if request.after_cursor == cursor { attempt + 1 } else { 0 };
                sleep(pause_after(&status, attempt).ok_or(status)?).await;
            }
        }
    }
}

/// Follows one stream until it breaks.
async fn follow(
    thread: &Thread,
    request: &mut v1::WatchRequest,
    take: &mut impl FnMut(v1::JournalEvent) -> bool,
) -> Result<(), Status> {
    let mut stream = thread.threads.clone().watch(request.clone()).await?.into_inner();
    while let Some(message) = stream.message().await? {
        for event in message.events {
            if !take(event) {
                return Ok(());
            }
        }
        request.after_cursor = message.cursor; // of every message, also of one without events
    }
    Ok(()) // the thread was deleted
}

/// Writes a blob. One that breaks off is written again from its first byte. A save then names the reference.
pub async fn write_blob(thread: &Thread, data: &[u8]) -> Result<v1::BlobRef, Status> {
    let begin = v1::BlobBegin {
        thread: thread.name.clone(),
        sha256: Sha256::digest(data).to_vec(),
        size_bytes: Some(data.len() as i64),
        ..Default::default()
    };
    let pieces = data.chunks(MESSAGE_BYTES).map(|piece| Part::Data(piece.to_vec()));
    let parts: Vec<_> = std::iter::once(Part::Begin(begin)).chain(pieces).collect();
    repeat(async || {
        let messages =
            parts.clone().into_iter().map(|part| v1::WriteBlobRequest { part: Some(part), ..Default::default() });
        let written = thread.blobs.clone().write_blob(tokio_stream::iter(messages)).await?.into_inner();
        Ok(written.blob.unwrap_or_default())
    })
    .await
}

/// Reads a blob. After a break it goes on at the next byte.
pub async fn read_blob(thread: &Thread, blob: v1::BlobRef) -> Result<Vec<u8>, Status> {
    let mut data = Vec::new();
    repeat(async || {
        let (thread_name, blob, offset) = (thread.name.clone(), Some(blob.clone()), data.len() as i64);
        let request = v1::ReadBlobRequest { thread: thread_name, blob, offset, ..Default::default() };
        let mut stream = thread.blobs.clone().read_blob(request).await?.into_inner();
        while let Some(message) = stream.message().await? {
            data.extend(message.data);
        }
        Ok(())
    })
    .await?;
    Ok(data)
}
