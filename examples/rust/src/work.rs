//! What agents do together: leases that are renewed, tools that are called once, and records.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, interval_at, sleep};
use tonic::Status;

use crate::client::v1::{self, EffectState};
use crate::client::{Thread, new_options};
use crate::retry::{has_reason, retry};

const MAX_POLL: Duration = Duration::from_secs(1);
const MAX_KEYS: usize = 1000;
/// A claim lives so long unless it is renewed: as long as others wait if this agent dies.
const CLAIM_TERM: Duration = Duration::from_secs(10);

/// A lease that is held.
pub struct Held {
    pub token: i64,
    /// Of the thread: the next thread of its name may give out the same token.
    pub uid: String,
    /// Why it is lost, as far as this process knows; empty = it is not known to be.
    pub lost: OnceCell<Status>,
}

/// Holds the lease of a thread while the work runs, and renews it three times in each term. Returns LEASE_HELD if it was
/// lost: the work must then save nothing any more.
pub async fn holding<A>(
    thread: &mut Thread,
    name: &str,
    term: Duration,
    work: impl AsyncFnOnce(&mut Thread, &Held) -> Result<A, Status>,
) -> Result<A, Status> {
    let leases = thread.leases.clone();
    let request = v1::AcquireLeaseRequest {
        thread: name.into(),
        options: Some(new_options()),
        holder: Some(thread.holder.clone()),
        term: prost_types::Duration::try_from(term).ok(),
        ..Default::default()
    };
    let acquired = retry(&request, async |request| leases.clone().acquire_lease(request).await).await?;
    let token = acquired.lease.unwrap_or_default().token;
    let uid = acquired.receipt.unwrap_or_default().uid;
    let held = Held { token, uid: uid.clone(), lost: OnceCell::new() };
    let renewal = v1::RenewLeaseRequest {
        thread: name.into(),
        lease_token: token,
        expected_uid: uid.clone(),
        ..Default::default()
    };
    let renewals = async {
        let mut ticks = interval_at(Instant::now() + term / 3, term / 3);
        loop {
            ticks.tick().await;
            if let Err(status) = retry(&renewal, async |request| leases.clone().renew_lease(request).await).await {
                let _ = held.lost.set(status);
                std::future::pending::<()>().await;
            }
        }
    };
    let done = tokio::select! {
        done = work(thread, &held) => done,
        () = renewals => unreachable!(),
    };
    if let Some(lost) = held.lost.into_inner() {
        return Err(lost);
    }
    let options = v1::WriteOptions { lease_token: token, expected_uid: uid, ..Default::default() };
    let release = v1::ReleaseLeaseRequest { thread: name.into(), options: Some(options), ..Default::default() };
    let released = retry(&release, async |request| leases.clone().release_lease(request).await).await;
    done.and_then(|done| released.map(|_| done))
}

/// Calls a tool at most once. Tool and check get the idempotency key, which is the same for all attempts. The check finds
/// out what became of a call whose agent died, and returns its result, or none if the tool has done nothing.
///
/// Returns the result, and the state in which the effect was: NEW or UNCERTAIN if this call has recorded the result, and
/// DONE if an earlier one had.
pub async fn call_once(
    thread: &Thread,
    anchor: &str,
    key: &str,
    tool: impl AsyncFnOnce(&str) -> v1::Value,
    check: impl AsyncFnOnce(&str) -> Option<v1::Value>,
) -> Result<(v1::Value, EffectState), Status> {
    let begun = loop {
        let begun = begin(thread, anchor, key).await?;
        if begun.state() != EffectState::InProgress {
            break begun;
        }
        sleep(begun.retry_after.and_then(|after| after.try_into().ok()).unwrap_or(MAX_POLL).min(MAX_POLL)).await;
    };
    let (state, recorded) = (begun.state(), begun.effect.unwrap_or_default());
    match state {
        EffectState::Done => return Ok((recorded.effect.and_then(|effect| effect.value).unwrap_or_default(), state)),
        EffectState::Failed => return Err(Status::aborted(format!("{key} has failed: {}", recorded.detail))),
        _ => {}
    }
    let receipt = begun.receipt.unwrap_or_default();
    let claim = v1::CompleteEffectRequest {
        thread: thread.name.clone(),
        options: Some(v1::WriteOptions { expected_uid: receipt.uid.clone(), ..Default::default() }),
        anchor: anchor.into(),
        key: key.into(),
        claim_token: begun.claim_token,
        ..Default::default()
    };
    let renewal = Renewal {
        thread,
        request: v1::RenewEffectRequest {
            thread: thread.name.clone(),
            anchor: anchor.into(),
            key: key.into(),
            claim_token: begun.claim_token,
            expected_uid: receipt.uid.clone(),
            ..Default::default()
        },
        sent: Cell::new(Some(Instant::now())),
    };
    let work = async {
        if receipt.durability < begun.required_durability {
            // A lost machine would lose the claim, and the tool would be called again.
            let request = v1::WaitDurableRequest {
                thread: thread.name.clone(),
                receipt: Some(receipt),
                durability: begun.required_durability,
                ..Default::default()
            };
            retry(&request, async |request| thread.threads.clone().wait_durable(request).await).await?;
        }
        let checked = if state == EffectState::Uncertain { check(&begun.idempotency_key).await } else { None };
        match checked {
            Some(value) => Ok::<_, Status>(value),
            None => {
                renewal.hold().await?;
                Ok(tool(&begun.idempotency_key).await)
            }
        }
    };
    let value: v1::Value = tokio::select! {
        done = work => done?,
        () = renewal.repeat() => unreachable!(),
    };
    let request = v1::CompleteEffectRequest { state: EffectState::Done.into(), value: Some(value.clone()), ..claim };
    retry(&request, async |request| thread.effects.clone().complete_effect(request).await).await?;
    Ok((value, state))
}

/// Renews a claim.
struct Renewal<'a> {
    thread: &'a Thread,
    request: v1::RenewEffectRequest,
    /// When the last renewal was sent that succeeded; none = another agent has the claim.
    sent: Cell<Option<Instant>>,
}

impl Renewal<'_> {
    /// Renews the claim three times in each term. A renewal that fails is made again with the next one, unless another
    /// agent has the claim.
    async fn repeat(&self) {
        let mut ticks = interval_at(Instant::now() + CLAIM_TERM / 3, CLAIM_TERM / 3);
        while self.sent.get().is_some() {
            ticks.tick().await;
            let _ = self.once().await;
        }
        std::future::pending().await
    }

    /// Returns CLAIM_LOST if the claim is lost: the tool must then not be called.
    async fn hold(&self) -> Result<(), Status> {
        match self.sent.get() {
            Some(sent) if sent.elapsed() < CLAIM_TERM / 2 => Ok(()),
            _ => self.once().await,
        }
    }

    async fn once(&self) -> Result<(), Status> {
        let sent = Instant::now();
        let renew = async |request| self.thread.effects.clone().renew_effect(request).await;
        match retry(&self.request, renew).await {
            Ok(_) => self.sent.set(Some(sent)),
            Err(status) if has_reason(&status, "CLAIM_LOST") => {
                self.sent.set(None);
                return Err(status);
            }
            Err(status) => return Err(status),
        }
        Ok(())
    }
}

/// Claims an effect. Each time it is a new request: with the same id the daemon would give the same answer for ever.
async fn begin(thread: &Thread, anchor: &str, key: &str) -> Result<v1::BeginEffectResponse, Status> {
    let request = v1::BeginEffectRequest {
        thread: thread.name.clone(),
        options: Some(new_options()),
        anchor: anchor.into(),
        key: key.into(),
        holder: Some(thread.holder.clone()),
        term: prost_types::Duration::try_from(CLAIM_TERM).ok(),
        ..Default::default()
    };
    retry(&request, async |request| thread.effects.clone().begin_effect(request).await).await
}

/// Writes a record, if it has the expected revision; 0 = it must not exist.
pub async fn put_record(thread: &Thread, key: &str, value: v1::Value, revision: i64) -> Result<(), Status> {
    let write = v1::RecordWrite {
        key: key.into(),
        change: Some(v1::record_write::Change::Value(value)),
        expected_revision: Some(revision),
        ..Default::default()
    };
    let request = v1::PutRecordsRequest {
        thread: thread.name.clone(),
        options: Some(new_options()),
        writes: vec![write],
        ..Default::default()
    };
    retry(&request, async |request| thread.records.clone().put_records(request).await).await.map(drop)
}

/// Returns the records with these keys that exist, however many answers they take.
pub async fn get_records(thread: &Thread, mut keys: Vec<String>) -> Result<HashMap<String, v1::StoredRecord>, Status> {
    let mut found = HashMap::new();
    while !keys.is_empty() {
        let later = keys.split_off(keys.len().min(MAX_KEYS));
        let request = v1::GetRecordsRequest { thread: thread.name.clone(), keys, ..Default::default() };
        let answer = retry(&request, async |request| thread.records.clone().get_records(request).await).await?;
        found.extend(answer.records.into_iter().map(|record| (record.key.clone(), record)));
        keys = answer.rest;
        keys.extend(later);
    }
    Ok(found)
}

/// Lists the keys with a prefix, in all pages. A page may be empty and not the last one.
pub async fn list_keys(thread: &Thread, prefix: &str) -> Result<Vec<String>, Status> {
    let mut keys = Vec::new();
    let mut request = v1::ListRecordsRequest {
        thread: thread.name.clone(),
        prefix: prefix.into(),
        without_values: true,
        ..Default::default()
    };
    loop {
        let page = retry(&request, async |request| thread.records.clone().list_records(request).await).await?;
        keys.extend(page.records.into_iter().map(|record| record.key));
        if page.next_page_token.is_empty() {
            return Ok(keys);
        }
        request.page_token = page.next_page_token;
    }
}
