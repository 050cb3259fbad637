//! Calls that outlive a daemon that is away, and the reasons of errors.

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};

use prost::Message;
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt;

const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Sends a request until it is answered. A write carries a request id, so the daemon applies it once.
pub async fn retry<Q: Clone, A>(
    message: &Q,
    call: impl AsyncFn(Request<Q>) -> Result<Response<A>, Status>,
) -> Result<A, Status> {
    repeat(async || {
        let mut request = Request::new(message.clone());
        request.set_timeout(CALL_TIMEOUT);
        Ok(call(request).await?.into_inner())
    })
    .await
}

/// Repeats an attempt until it succeeds, fails for good, or the time is over: tonic reads no service config, so its retry
/// policy is this loop.
pub async fn repeat<A>(mut attempt: impl AsyncFnMut() -> Result<A, Status>) -> Result<A, Status> {
    let end = Instant::now() + RETRY_TIMEOUT;
    for number in 0.. {
        let status = match attempt().await {
            Ok(answer) => return Ok(answer),
            Err(status) => status,
        };
        match pause_after(&status, number) {
            Some(pause) if Instant::now() + pause < end => tokio::time::sleep(pause).await,
            _ => return Err(status),
        }
    }
    unreachable!()
}

/// Returns how long to wait before another attempt; none if the error is final.
pub fn pause_after(status: &Status, attempt: u32) -> Option<Duration> {
    let (reason, facts) = explain(status);
    if let Some(free_in_s) = facts.get("free_in_s").filter(|_| reason == "NOT_OWNER") {
        return Some(Duration::try_from_secs_f64(free_in_s.parse().ok()?).ok()?.max(MIN_PAUSE));
    }
    // tonic reports a connection that breaks during a call as UNKNOWN. Such an error has a source, and an error that the
    // daemon sent has none. CANCELLED comes from a daemon that stops, and from tonic when the deadline passes.
    let is_code = matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled);
    let told = status.get_details_retry_info().and_then(|info| info.retry_delay);
    if told.is_some() {
        return told;
    }
    if !is_code && status.source().is_none() && reason != "QUEUE_FULL" {
        return None;
    }
    // Many clients that lost the same daemon do not come back all at once.
    let backoff = (MIN_PAUSE * 2u32.pow(attempt.min(5))).min(MAX_PAUSE);
    Some(backoff.mul_f64(0.5 + f64::from(uuid::Uuid::new_v4().as_bytes()[0]) / 512.0))
}

/// Returns why the daemon refused a call, and the facts that error_reason.proto names for the reason. The reason is
/// empty if the error comes from gRPC itself.
pub fn explain(status: &Status) -> (String, HashMap<String, String>) {
    match status.get_details_error_info() {
        Some(info) if info.domain == "stateward" => (info.reason, info.metadata),
        _ => Default::default(),
    }
}

/// Makes the status of a refused frame that of a call by itself.
pub fn refusal(refused: tonic_types::Status) -> Status {
    Status::with_details(Code::from(refused.code), &refused.message, refused.encode_to_vec().into())
}

pub fn has_reason(status: &Status, reason: &str) -> bool {
    explain(status).0 == reason
}
