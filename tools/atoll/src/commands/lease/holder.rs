//! Holds one lease: what to ask the daemon next, and what its answer means. No clock and no
//! connection.

use crate::client::AskError;
use crate::failure::user_error;
use anyhow::{Result, anyhow};
use atoll_client::{LeaseHold, LeaseReport, LeaseSpec};
use std::time::{Duration, Instant};

/// A lease is renewed this often in its time to live.
const RENEWALS: u32 = 3;

/// Pause before a request that was refused or lost is sent again.
const PAUSE: Duration = Duration::from_secs(1);

/// A request to the daemon.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ask {
    /// Grant the lease.
    Grant(LeaseSpec),
    /// Renew it.
    Renew(LeaseHold),
}

/// The holder of one lease.
///
/// Only differences of the local monotonic clock count: a lease is valid here until its time to
/// live after the last renewal was *sent*, which is never later than at the daemon.
#[derive(Debug)]
pub(super) struct Holder {
    /// With the id of the request, which repetitions share.
    spec: LeaseSpec,
    lease: Option<(LeaseReport, Instant)>,
    /// Makes ids of requests.
    id: fn() -> Result<String>,
    /// Why there is no lease, or why it was not renewed.
    problem: Option<String>,
}

impl Holder {
    pub(super) fn new(spec: LeaseSpec, id: fn() -> Result<String>) -> Holder {
        Holder { spec, lease: None, id, problem: None }
    }

    /// The next request.
    pub(super) fn ask(&self) -> Ask {
        self.hold().map_or_else(|| Ask::Grant(self.spec.clone()), Ask::Renew)
    }

    /// The lease as its daemon knows it, to release it.
    pub(super) fn hold(&self) -> Option<LeaseHold> {
        let (lease, _) = self.lease.as_ref()?;
        Some(LeaseHold { lease: lease.lease, epoch: lease.epoch, holder: lease.holder.clone() })
    }

    /// The lease, if it is valid.
    pub(super) fn current(&self, now: Instant) -> Option<&LeaseReport> {
        self.lease.as_ref().filter(|(_, until)| now < *until).map(|(lease, _)| lease)
    }

    /// Why the last request had no success.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Takes the answer to the request that was sent at `sent`. Returns the pause before the next.
    ///
    /// # Errors
    /// Fails if asking again is of no use: the request for a lease is wrong, or may not be sent.
    pub(super) fn answered(&mut self, sent: Instant, answer: Result<LeaseReport, AskError>) -> Result<Duration> {
        let error = match answer {
            Ok(lease) => {
                let ttl = Duration::from_secs(lease.ttl_s);
                self.lease = Some((lease, sent + ttl));
                self.problem = None;
                return Ok(ttl / RENEWALS);
            }
            Err(error) => error,
        };
        let (status, message) = match error {
            AskError::Refused { status, message } => (Some(status), message),
            AskError::Failed(error) => (None, format!("{error:#}")),
        };
        self.problem = Some(message.clone());
        match (self.lease.is_some(), status) {
            // It has ended, or belongs to another holder: another one is asked for at once.
            (true, Some(404 | 409)) => {
                self.lease = None;
                self.spec.request_id = (self.id)()?;
                Ok(Duration::ZERO)
            }
            // The lease of this request has ended: its answer was lost, or another process had it.
            (false, Some(409)) => {
                self.spec.request_id = (self.id)()?;
                Ok(PAUSE)
            }
            // The function may be deployed later.
            (false, Some(404)) => Ok(PAUSE),
            (false, Some(400 | 401 | 403)) => Err(user_error(message)),
            (false, Some(status)) if status < 500 => Err(anyhow!(message)),
            _ => Ok(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    fn id() -> Result<String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(format!("new-{}", NEXT.fetch_add(1, Relaxed)))
    }

    fn holder() -> Holder {
        Holder::new(LeaseSpec { request_id: "first".into(), holder: "h".into(), ..LeaseSpec::default() }, id)
    }

    fn lease(epoch: u64) -> LeaseReport {
        LeaseReport {
            lease: 1,
            epoch,
            tenant: atoll_client::Tenant::default(),
            holder: "h".into(),
            function: "f".into(),
            instance: "lease-1".into(),
            device: "host:0".into(),
            class: None,
            sm_partition: 30.0,
            quota_request: 0.4,
            quota_limit: 0.8,
            gpu_mem: 1,
            real_time_slots: 0,
            ttl_s: 15,
            expires_in_ms: 15_000,
        }
    }

    fn refused(status: u16) -> Result<LeaseReport, AskError> {
        Err(AskError::Refused { status, message: format!("refused with {status}") })
    }

    fn lost() -> Result<LeaseReport, AskError> {
        Err(AskError::Failed(anyhow!("lost")))
    }

    fn request_id(holder: &Holder) -> String {
        match holder.ask() {
            Ask::Grant(spec) => spec.request_id,
            Ask::Renew(hold) => panic!("it renews {hold:?}"),
        }
    }

    #[test]
    fn a_request_is_repeated_with_its_id_until_it_is_answered() {
        let (mut holder, now) = (holder(), Instant::now());
        for answer in [lost(), refused(503), refused(404), lost()] {
            assert_eq!(holder.answered(now, answer).unwrap(), PAUSE);
            assert_eq!(request_id(&holder), "first");
            assert!(holder.current(now).is_none() && holder.problem().is_some());
        }
        assert_eq!(holder.answered(now, Ok(lease(2))).unwrap(), Duration::from_secs(5));
        assert!(holder.problem().is_none());
        assert_eq!(holder.ask(), Ask::Renew(LeaseHold { lease: 1, epoch: 2, holder: "h".into() }));
    }

    #[test]
    fn a_lease_is_valid_from_when_its_renewal_was_sent() {
        let (mut holder, now) = (holder(), Instant::now());
        holder.answered(now, Ok(lease(2))).unwrap();
        let later = |seconds| now + Duration::from_secs(seconds);
        assert!(holder.current(later(14)).is_some() && holder.current(later(15)).is_none());
        // The daemon is away: it is renewed until it answers, also when it is not valid here.
        assert_eq!(holder.answered(later(5), lost()).unwrap(), PAUSE);
        assert_eq!(holder.answered(later(16), refused(503)).unwrap(), PAUSE);
        assert!(matches!(holder.ask(), Ask::Renew(_)));
        holder.answered(later(17), Ok(lease(2))).unwrap();
        assert!(holder.current(later(31)).is_some() && holder.current(later(32)).is_none());
    }

    #[test]
    fn a_lease_that_has_ended_is_replaced_by_another_one() {
        for status in [404, 409] {
            let (mut holder, now) = (holder(), Instant::now());
            holder.answered(now, Ok(lease(2))).unwrap();
            assert_eq!(holder.answered(now, refused(status)).unwrap(), Duration::ZERO);
            assert!(holder.current(now).is_none() && holder.hold().is_none());
            assert!(request_id(&holder).starts_with("new-"));
        }
        // A container that starts again after its lease has ended.
        let (mut holder, now) = (holder(), Instant::now());
        assert_eq!(holder.answered(now, refused(409)).unwrap(), PAUSE);
        assert!(request_id(&holder).starts_with("new-"));
    }

    #[test]
    fn a_request_that_is_wrong_ends_the_holder() {
        for status in [400, 401, 403, 413] {
            let error = holder().answered(Instant::now(), refused(status)).unwrap_err();
            assert_eq!(error.to_string(), format!("refused with {status}"));
        }
        // One that holds a lease goes on: its token may be renewed.
        let (mut holder, now) = (holder(), Instant::now());
        holder.answered(now, Ok(lease(2))).unwrap();
        assert_eq!(holder.answered(now, refused(401)).unwrap(), PAUSE);
        assert!(holder.current(now).is_some());
    }
}
