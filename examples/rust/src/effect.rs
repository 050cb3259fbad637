//! A call that must not happen twice.

use std::error::Error;

use crate::client::v1::{self, EffectState};
use crate::client::{Thread, data, new_id, text};
use crate::retry::retry;

/// Pays unless an earlier run has paid.
pub async fn pay(thread: &Thread) -> Result<(), Box<dyn Error>> {
    let (name, anchor, key) = (thread.name.clone(), "booking".to_owned(), "pay".to_owned());
    let request = v1::BeginEffectRequest {
        thread: name.clone(),
        anchor: anchor.clone(),
        key: key.clone(),
        holder: Some(thread.holder.clone()),
        request_id: new_id(),
        ..Default::default()
    };
    let begun = retry(&request, async |request| thread.effects.clone().begin_effect(request).await).await?;
    match begun.state() {
        EffectState::New => {
            // Here an agent calls its bank, with begun.idempotency_key.
            let (claim_token, value) = (begun.claim_token, Some(text("receipt 17")));
            let mut request =
                v1::CompleteEffectRequest { thread: name, anchor, key, claim_token, value, ..Default::default() };
            request.set_state(EffectState::Done);
            retry(&request, async |request| thread.effects.clone().complete_effect(request).await).await?;
            println!("effect NEW: paid");
        }
        EffectState::Done => {
            let receipt = begun.effect.and_then(|recorded| recorded.effect?.value).unwrap_or_default();
            println!("effect DONE: {}", str::from_utf8(data(&receipt))?);
        }
        // UNCERTAIN: an agent asks its bank whether it has paid.
        state => return Err(format!("effect {}", state.as_str_name()).into()),
    }
    Ok(())
}
