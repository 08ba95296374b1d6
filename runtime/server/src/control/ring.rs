//! Opens rings, and closes them with their connections.

use super::Control;
use super::refusal::{HasRefusalKind, OrRefuse, bad_request, panicked};
use crate::identity::Principal;
use crate::rings::registry::TooMany;
use crate::rings::worker::{Running, start};
use atoll_control::{Answer, Attachments, Refusal, RefusalKind, RingReport, RingSpec};
use atoll_ring::limits::SPIN_MAX;
use atoll_ring::{DaemonEnd, Layout};
use std::sync::Arc;
use std::time::Duration;

impl HasRefusalKind for TooMany {
    fn kind(&self) -> RefusalKind {
        match self {
            TooMany::OfAll => RefusalKind::Busy,
            TooMany::OfTenant(_) | TooMany::Bytes(_) => RefusalKind::Quota,
        }
    }
}

impl Control {
    /// Opens a ring. From now on the connection belongs to it.
    pub(super) fn open_ring(
        &self,
        principal: &Principal,
        ring: &mut Option<Running>,
        spec: RingSpec,
    ) -> Result<(Answer, Attachments), Refusal> {
        let layout = Layout::new(spec.slots, spec.arena_bytes).map_err(bad_request)?;
        let spin = Duration::from_micros(spec.spin_us.into()).min(SPIN_MAX);
        let seat = self.app.rings.admit(&principal.tenant, layout.bytes()).or_refuse()?;
        let daemon = DaemonEnd::create(layout).or_refuse()?;
        let mut attachments = Attachments::default();
        let memory = attachments.add_memory(&daemon).or_refuse()?;
        let caller = Arc::new(principal.clone());
        *ring = Some(start(self.app.clone(), caller, daemon, spin, seat).or_refuse()?);
        let (slots, arena_bytes, spin_us) = (layout.slots(), layout.arena_bytes(), spin.as_micros() as u32);
        Ok((Answer::Ring(RingReport { slots, arena_bytes, spin_us, memory }), attachments))
    }
}

/// Waits until a ring ends. `client` completes when the client closes the connection or sends
/// something, which violates the protocol; `stop` completes when the daemon stops. Returns the
/// reason to send to the client; `None` if `client` completed.
pub(super) async fn attend(
    mut ring: Running,
    client: impl Future<Output = ()>,
    stop: impl Future<Output = ()>,
) -> Option<Refusal> {
    let (mut client, mut stop) = (std::pin::pin!(client), std::pin::pin!(stop));
    let mut is_stopping = false;
    let ended = loop {
        tokio::select! {
            ended = ring.ended() => break ended,
            () = &mut client => {
                ring.cancel();
                ring.ended().await;
                return None;
            }
            () = &mut stop, if !is_stopping => {
                is_stopping = true;
                ring.drain();
            }
        }
    };
    Some(match ended {
        Some((_, Some(error))) => bad_request(error),
        Some((_, None)) => {
            Refusal { kind: RefusalKind::Busy, message: "the daemon is stopping and has closed the ring".into() }
        }
        None => panicked(),
    })
}
