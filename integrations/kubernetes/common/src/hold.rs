//! A lease and its holder: what to ask the daemon next, and what its answers mean. No clock and no
//! connection.

#[cfg(test)]
mod tests;

use crate::request::{Ask, Refused};
use atoll_client::{LeaseHold, LeaseReport, LeaseSpec};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Number of renewals of a lease in its time to live.
const RENEWALS: u32 = 3;

/// Pause before a renewal that was lost is sent again.
const PAUSE: Duration = Duration::from_secs(1);

/// Longest pause before a request that was refused is sent again.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A lease as the status of an instance, or a file of the driver, has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its number.
    pub lease: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Its holder.
    pub holder: String,
    /// The instance that requests name.
    pub instance: String,
    /// Its device.
    pub device: String,
}

impl Lease {
    /// The lease of an answer.
    pub fn of(report: &LeaseReport) -> Lease {
        let LeaseReport { lease, epoch, holder, instance, device, .. } = report;
        let (holder, instance, device) = (holder.clone(), instance.clone(), device.clone());
        Lease { lease: *lease, epoch: *epoch, holder, instance, device }
    }

    /// The lease as requests to the daemon name it.
    pub fn hold(&self) -> LeaseHold {
        LeaseHold { lease: self.lease, epoch: self.epoch, holder: self.holder.clone() }
    }
}

/// Reasons of the condition `Ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The daemon was asked and has not answered.
    Asking,
    /// The lease is valid.
    Granted,
    /// The daemon has no room now, or the function is not loaded.
    NoRoom,
    /// No daemon answers at the node.
    NoDaemon,
    /// The daemon refuses the request.
    Refused,
    /// The lease has ended.
    Ended,
    /// The instance is being deleted: no new requests may name it.
    Draining,
    /// The specification is invalid.
    Invalid,
    /// The API server refuses to create an instance.
    NotCreated,
}

impl Reason {
    /// The reason as conditions state it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Asking => "Asking",
            Reason::Granted => "Granted",
            Reason::NoRoom => "NoRoom",
            Reason::NoDaemon => "NoDaemon",
            Reason::Refused => "Refused",
            Reason::Ended => "Ended",
            Reason::Draining => "Draining",
            Reason::Invalid => "Invalid",
            Reason::NotCreated => "NotCreated",
        }
    }
}

/// The holder of the lease of one instance.
///
/// Times are of one monotonic clock. A lease counts as valid until its time to live after the last
/// successful request was *sent*, which is never later than at the daemon.
#[derive(Clone, Debug)]
pub struct Hold {
    spec: LeaseSpec,
    lease: Option<Lease>,
    valid_until: Duration,
    /// A lease of an earlier leader counts as valid until then, although no answer has arrived.
    trusted_until: Duration,
    renew_at: Duration,
    retry_at: Duration,
    failures: u32,
    is_asking: bool,
    /// No other process has ever asked for the lease.
    is_alone: bool,
    /// The answer to a request for the lease was lost, so it may have been granted.
    is_lost: bool,
    problem: Option<(Reason, String)>,
    has_ended: bool,
    /// Clients may know the lease.
    is_published: bool,
    /// Since when the instance is being deleted.
    leaves_since: Option<Duration>,
    is_gone: bool,
}

impl Hold {
    /// The holder for a request. `lease` is what the status has: the lease that an earlier leader
    /// got with the same request.
    pub fn new(spec: LeaseSpec, lease: Option<Lease>, now: Duration) -> Hold {
        let ttl = ttl(&spec);
        Hold {
            trusted_until: lease.as_ref().map_or(Duration::ZERO, |_| now + ttl / RENEWALS),
            is_published: lease.is_some(),
            spec,
            lease,
            valid_until: Duration::ZERO,
            renew_at: now,
            retry_at: now,
            failures: 0,
            is_asking: false,
            is_alone: false,
            is_lost: false,
            problem: None,
            has_ended: false,
            leaves_since: None,
            is_gone: false,
        }
    }

    /// Notes that no other process has ever asked: a lease that was refused needs no release.
    #[must_use]
    pub fn alone(mut self) -> Hold {
        self.is_alone = true;
        self
    }

    /// The lease that the daemon granted.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Whether the lease has ended at the daemon. Its id is used up: another lease needs another id.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Number of consecutive requests that failed.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Notes that clients may know the lease from now on.
    pub fn publish(&mut self) {
        self.is_published |= self.lease.is_some();
    }

    /// Notes that the instance is being deleted.
    pub fn leave(&mut self, now: Duration) {
        self.leaves_since.get_or_insert(now);
        self.is_gone |= self.is_alone && self.lease.is_none() && !self.is_asking && !self.is_lost;
    }

    /// Whether the lease was released or has ended, so that the instance may be deleted.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// The request to send now, if there is one. `drain` is how long requests of clients may go on
    /// after the deletion of the instance. While a request has no answer there is no other one.
    pub fn next(&mut self, now: Duration, drain: Duration) -> Option<Ask> {
        if self.is_asking || self.is_gone || now < self.retry_at {
            return None;
        }
        let release_at = self.leaves_since.map(|since| since + if self.is_published { drain } else { Duration::ZERO });
        let ask = match (&self.lease, release_at) {
            (_, Some(_)) if self.has_ended => {
                self.is_gone = true;
                return None;
            }
            (None, _) if self.has_ended => return None,
            // Also if it leaves: an earlier leader may have got the lease, and the answer names it.
            (None, _) => Ask::Grant(self.spec.clone()),
            (Some(lease), Some(at)) if now >= at => Ask::Release(lease.hold()),
            (Some(lease), _) if now >= self.renew_at => Ask::Renew(lease.hold()),
            (Some(_), _) => return None,
        };
        self.is_asking = true;
        Some(ask)
    }

    /// Takes the answer to a request that was sent at `sent`. A release has no lease in its answer.
    pub fn answered(&mut self, sent: Duration, now: Duration, ask: &Ask, answer: Result<Option<LeaseReport>, Refused>) {
        self.is_asking = false;
        if let Ask::Grant(_) = ask {
            self.is_lost = match &answer {
                Ok(_) => false,
                Err(Refused { status: Some(status), .. }) if is_definite(*status) => false,
                // It says nothing about a request before.
                Err(Refused { status: Some(400..500 | 503), .. }) => self.is_lost,
                Err(_) => true,
            };
        }
        let refused = match (ask, answer) {
            (Ask::Release(_), Ok(_)) => {
                self.is_gone = true;
                return;
            }
            (_, Ok(Some(report))) => return self.granted(sent, &report),
            (_, Ok(None)) => Refused { status: None, message: "the answer has no lease".into() },
            (_, Err(refused)) => refused,
        };
        match (ask, refused.status) {
            (Ask::Release(_), Some(404 | 409)) => self.is_gone = true,
            (Ask::Grant(_), Some(409)) | (Ask::Renew(_), Some(404 | 409)) => {
                self.lease = None;
                self.has_ended = true;
                self.problem = Some((Reason::Ended, refused.message));
            }
            // There is no lease to release.
            (Ask::Grant(_), Some(status))
                if self.leaves_since.is_some() && (is_definite(status) || self.is_alone && !self.is_lost) =>
            {
                self.is_gone = true;
            }
            (Ask::Grant(_), _) => self.fail(now, backoff(self.failures), refused),
            _ => self.fail(now, PAUSE, refused),
        }
        // The daemon ends the lease by its time to live, also if it never answers again.
        let ttl = ttl(&self.spec);
        if self.leaves_since.is_some_and(|since| now >= since.max(self.valid_until) + 2 * ttl) {
            self.is_gone = true;
        }
    }

    /// No daemon is known at the node, so no request can be sent.
    pub fn no_daemon(&mut self, now: Duration, message: &str) {
        let ask = self.lease.as_ref().map_or_else(|| Ask::Grant(self.spec.clone()), |lease| Ask::Renew(lease.hold()));
        self.answered(now, now, &ask, Err(Refused { status: None, message: message.into() }));
    }

    fn granted(&mut self, sent: Duration, report: &LeaseReport) {
        let ttl = ttl(&self.spec);
        self.lease = Some(Lease::of(report));
        self.valid_until = sent + ttl;
        self.renew_at = sent + ttl / RENEWALS;
        (self.failures, self.problem, self.retry_at) = (0, None, Duration::ZERO);
    }

    fn fail(&mut self, now: Duration, pause: Duration, refused: Refused) {
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now + pause;
        let reason = match refused.status {
            None => Reason::NoDaemon,
            Some(503) => Reason::NoRoom,
            Some(_) => Reason::Refused,
        };
        self.problem = Some((reason, refused.message));
    }

    /// The reason of the condition `Ready`, with a message. `None` while the status that an earlier
    /// leader wrote remains valid.
    pub fn ready(&self, now: Duration) -> Option<(Reason, String)> {
        let problem = || self.problem.clone();
        if self.leaves_since.is_some() {
            let message = "requests that run may end; then the lease is released";
            return Some((Reason::Draining, message.into()));
        }
        match &self.lease {
            None => Some(problem().unwrap_or((Reason::Asking, "the daemon was asked for the lease".into()))),
            Some(_) if now < self.valid_until => Some((Reason::Granted, String::new())),
            Some(_) if now < self.trusted_until => None,
            Some(_) => {
                let why = problem().map_or_else(|| "the daemon has not answered".into(), |(_, message)| message);
                Some((Reason::NoDaemon, format!("the lease could not be renewed in time: {why}")))
            }
        }
    }
}

/// Whether a status refuses a grant for good. After another one, such as 429 or 503, a request that
/// is still on its way may be granted.
fn is_definite(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 401 | 408 | 425 | 429)
}

fn ttl(spec: &LeaseSpec) -> Duration {
    Duration::from_secs(u64::try_from(spec.ttl_s).unwrap_or(0).clamp(5, 600))
}

/// Pause after so many failures: 1, 2, 4 seconds and so on, up to [`PAUSE_MAX`].
fn backoff(failures: u32) -> Duration {
    PAUSE.saturating_mul(1 << failures.min(5)).min(PAUSE_MAX)
}
