//! The claims of this node and their leases: what to ask the daemon next, and what its answers mean. No
//! clock, no thread, no file and no connection.
//!
//! A lease that has ended is replaced by another one with another request id. Leases of a claim that is
//! not used any more are released; the claim is forgotten when all of them are gone.

use crate::claim::{Part, Record};
use atoll_client::LeaseReport;
use atoll_kubernetes::hold::{Hold, Reason};
use atoll_kubernetes::request::{Ask, Refused};
use std::collections::BTreeMap;
use std::time::Duration;

/// How many leases of a claim may end before the next one waits for [`PAUSE`].
const ENDED_AT_ONCE: u32 = 8;

/// Pause before another lease is asked for.
const PAUSE: Duration = Duration::from_secs(1);

/// A request to the daemon.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// The claim.
    pub(crate) uid: String,
    /// The part of it.
    pub(crate) part: usize,
    /// Its namespace, whose token the request has.
    pub(crate) namespace: String,
    /// The request.
    pub(crate) ask: Ask,
}

/// What to do with files. In order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Effect {
    /// Store a record.
    Save(Record),
    /// Show a lease to containers, or that there is none.
    Show {
        /// The claim.
        uid: String,
        /// The name of the file.
        file: String,
        /// The lease.
        lease: Option<Box<LeaseReport>>,
    },
    /// Remove the record of a claim.
    Forget(String),
}

/// How far a claim is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// There is no such claim.
    Unknown,
    /// The daemon was asked for its leases.
    Asking,
    /// All leases are valid.
    Ready(Box<Record>),
    /// Why a lease is not granted. The driver goes on asking.
    Refused(String),
    /// Its leases are being released.
    Leaving,
}

/// The claims.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    claims: BTreeMap<String, Claim>,
    /// The UIDs of claims that are being read from the API server, by the number of the call.
    planned: BTreeMap<u64, String>,
    calls: u64,
}

#[derive(Debug)]
struct Claim {
    record: Record,
    /// For each part that has a lease.
    holds: Vec<Option<Held>>,
}

#[derive(Debug)]
struct Held {
    hold: Hold,
    report: Option<LeaseReport>,
    /// The lease that containers see, by number and epoch. `None` if that is not known.
    shown: Option<Option<(u64, u64)>>,
}

impl Claims {
    /// Notes that a claim is being read from the API server. Returns the number of the call.
    pub(crate) fn begin(&mut self, uid: &str) -> u64 {
        self.calls += 1;
        self.planned.insert(self.calls, uid.into());
        self.calls
    }

    /// Notes the end of a call. Returns whether the claim was not released since its beginning.
    pub(crate) fn end(&mut self, call: u64) -> bool {
        self.planned.remove(&call).is_some()
    }

    /// Takes a new claim, or one of an earlier process.
    pub(crate) fn insert(&mut self, record: Record, is_new: bool, now: Duration) {
        let held = |part: &Part| {
            let hold = Hold::new(part.request()?, part.lease.clone(), now);
            let mut hold = if is_new { hold.alone() } else { hold };
            if record.leaves {
                hold.leave(now);
            }
            Some(Held { hold, report: None, shown: None })
        };
        let holds = record.parts.iter().map(held).collect();
        self.claims.insert(record.uid.clone(), Claim { record, holds });
    }

    /// Begins to release a claim. Returns the record to store, if the claim is known.
    pub(crate) fn leave(&mut self, uid: &str, now: Duration) -> Option<Record> {
        self.planned.retain(|_, planned| planned != uid);
        let claim = self.claims.get_mut(uid)?;
        claim.record.leaves = true;
        for held in claim.holds.iter_mut().flatten() {
            held.hold.leave(now);
        }
        Some(claim.record.clone())
    }

    /// How far a claim is.
    pub(crate) fn state(&self, uid: &str, now: Duration) -> State {
        let Some(claim) = self.claims.get(uid) else { return State::Unknown };
        if claim.record.leaves {
            return State::Leaving;
        }
        let mut is_asking = false;
        for held in claim.holds.iter().flatten() {
            match held.hold.ready(now) {
                // The report is what containers see.
                Some((Reason::Granted, _)) if held.report.is_some() => {}
                Some((Reason::Granted | Reason::Asking | Reason::Ended, _)) | None => is_asking = true,
                Some((_, why)) => return State::Refused(why),
            }
        }
        if is_asking { State::Asking } else { State::Ready(Box::new(claim.record.clone())) }
    }

    /// The requests to send now, and what to do with files.
    pub(crate) fn step(&mut self, now: Duration) -> (Vec<Call>, Vec<Effect>) {
        let (mut calls, mut effects) = (Vec::new(), Vec::new());
        for (uid, claim) in &mut self.claims {
            for (part, held) in claim.holds.iter_mut().enumerate() {
                let Some(held) = held else { continue };
                if let Some(ask) = held.hold.next(now, Duration::ZERO) {
                    let (uid, namespace) = (uid.clone(), claim.record.namespace.clone());
                    calls.push(Call { uid, part, namespace, ask });
                }
                effects.extend(held.show(uid, &claim.record.parts[part].file, now));
            }
        }
        self.claims.retain(|uid, claim| {
            let is_gone = claim.record.leaves && claim.holds.iter().flatten().all(|held| held.hold.is_gone());
            if is_gone {
                effects.push(Effect::Forget(uid.clone()));
            }
            !is_gone
        });
        (calls, effects)
    }

    /// Takes the answer to a request that was sent at `sent`.
    pub(crate) fn answered(
        &mut self,
        sent: Duration,
        now: Duration,
        call: &Call,
        answer: Result<Option<LeaseReport>, Refused>,
    ) -> Vec<Effect> {
        let Some(claim) = self.claims.get_mut(&call.uid) else { return Vec::new() };
        let (Some(part), Some(Some(held))) = (claim.record.parts.get_mut(call.part), claim.holds.get_mut(call.part))
        else {
            return Vec::new();
        };
        let report = answer.as_ref().ok().cloned().flatten();
        held.hold.answered(sent, now, &call.ask, answer);
        if report.is_some() {
            held.report = report;
        }
        let ended = part.ended;
        if held.hold.has_ended() && !claim.record.leaves {
            part.ended = part.ended.saturating_add(1);
            let pause = if part.ended > ENDED_AT_ONCE { PAUSE } else { Duration::ZERO };
            if let Some(spec) = part.request() {
                held.hold = Hold::new(spec, None, now + pause).alone();
                held.report = None;
            }
        }
        let lease = held.hold.lease().cloned();
        let mut effects = Vec::new();
        // Another process must not take the id of the next request for one that was never sent.
        let is_changed = lease != part.lease || part.ended != ended;
        let shown = held.show(&call.uid, &part.file, now);
        if is_changed {
            part.lease = lease;
            effects.push(Effect::Save(claim.record.clone()));
        }
        effects.extend(shown);
        effects
    }
}

impl Held {
    /// Shows the lease to containers if it is another one, and hides one that is not valid.
    fn show(&mut self, uid: &str, file: &str, now: Duration) -> Option<Effect> {
        let is_valid = match self.hold.ready(now) {
            Some((reason, _)) => reason == Reason::Granted,
            // What an earlier process has shown stays until the first answer.
            None => return None,
        };
        let lease = self.report.as_ref().filter(|_| is_valid);
        let wanted = lease.map(|report| (report.lease, report.epoch));
        if self.shown == Some(wanted) {
            return None;
        }
        self.shown = Some(wanted);
        let lease = lease.cloned().map(Box::new);
        Some(Effect::Show { uid: uid.into(), file: file.into(), lease })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_client::LeaseSpec;
    use atoll_kubernetes::hold::Lease;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn record() -> Record {
        let part = |file: &str, spec| Part {
            request: "gpu".into(),
            pool: "p".into(),
            device: "d".into(),
            share_id: None,
            file: file.into(),
            variables: Vec::new(),
            spec,
            ended: 0,
            lease: None,
        };
        let spec = LeaseSpec { request_id: "u-0".into(), holder: "h".into(), ttl_s: 30, ..LeaseSpec::default() };
        let parts = vec![part("a.json", Some(spec)), part("b.json", None)];
        Record { namespace: "apps".into(), name: "c".into(), uid: "u".into(), leaves: false, parts }
    }

    fn report(lease: u64) -> LeaseReport {
        LeaseReport {
            lease,
            epoch: 2,
            tenant: atoll_client::Tenant::default(),
            holder: "h".into(),
            function: "f".into(),
            instance: format!("lease-{lease}"),
            device: "host:0".into(),
            class: None,
            sm_partition: 30.0,
            quota_request: 0.4,
            quota_limit: 0.8,
            gpu_mem: 1,
            real_time_slots: 0,
            ttl_s: 30,
            expires_in_ms: 30_000,
        }
    }

    fn refused(status: Option<u16>) -> Result<Option<LeaseReport>, Refused> {
        Err(Refused { status, message: "why".into() })
    }

    /// The one request of a step.
    fn one(claims: &mut Claims, now: Duration) -> Call {
        let (calls, _) = claims.step(now);
        let [call] = calls.as_slice() else { panic!("{calls:?}") };
        call.clone()
    }

    /// Claims with one whose lease is number 1, granted at second 0.
    fn granted() -> (Claims, Vec<Effect>) {
        let mut claims = Claims::default();
        claims.insert(record(), true, at(0));
        let call = one(&mut claims, at(0));
        let effects = claims.answered(at(0), at(0), &call, Ok(Some(report(1))));
        (claims, effects)
    }

    fn shows(effects: &[Effect]) -> Vec<Option<u64>> {
        let shown = |effect: &Effect| match effect {
            Effect::Show { lease, .. } => Some(lease.as_ref().map(|report| report.lease)),
            _ => None,
        };
        effects.iter().filter_map(shown).collect()
    }

    #[test]
    fn a_claim_is_ready_when_its_leases_are_granted() {
        let mut claims = Claims::default();
        assert_eq!(claims.state("u", at(0)), State::Unknown);
        claims.insert(record(), true, at(0));
        assert_eq!(claims.state("u", at(0)), State::Asking);
        let call = one(&mut claims, at(0));
        assert_eq!((call.part, call.namespace.as_str()), (0, "apps"));
        assert!(matches!(&call.ask, Ask::Grant(spec) if spec.request_id == "u-0"));
        assert_eq!(claims.step(at(0)).0, [], "one request at a time");
        claims.answered(at(0), at(0), &call, refused(Some(503)));
        assert_eq!(claims.state("u", at(0)), State::Refused("why".into()));
        let call = one(&mut claims, at(1));
        let effects = claims.answered(at(1), at(1), &call, Ok(Some(report(7))));
        let State::Ready(ready) = claims.state("u", at(1)) else { panic!("{claims:?}") };
        assert_eq!(ready.parts[0].lease, Some(Lease::of(&report(7))));
        assert_eq!(effects[0], Effect::Save(*ready), "the lease is stored before containers see it");
        assert_eq!(shows(&effects), [Some(7)]);
    }

    #[test]
    fn leases_are_renewed_and_an_ended_one_is_replaced() {
        let (mut claims, _) = granted();
        assert_eq!(claims.step(at(9)).0, []);
        let call = one(&mut claims, at(10));
        assert!(matches!(call.ask, Ask::Renew(_)));
        assert_eq!(claims.answered(at(10), at(10), &call, Ok(Some(report(1)))), [], "nothing has changed");
        let call = one(&mut claims, at(20));
        let effects = claims.answered(at(20), at(20), &call, refused(Some(404)));
        assert_eq!(shows(&effects), [None]);
        let Effect::Save(saved) = &effects[0] else { panic!("{effects:?}") };
        assert_eq!((saved.parts[0].ended, &saved.parts[0].lease), (1, &None));
        assert_eq!(claims.state("u", at(20)), State::Asking);
        let call = one(&mut claims, at(20));
        assert!(matches!(&call.ask, Ask::Grant(spec) if spec.request_id == "u-0-1"));
        let effects = claims.answered(at(20), at(20), &call, Ok(Some(report(2))));
        assert_eq!(shows(&effects), [Some(2)]);
    }

    #[test]
    fn a_lease_that_is_not_renewed_in_time_is_hidden() {
        let (mut claims, _) = granted();
        let call = one(&mut claims, at(10));
        claims.answered(at(10), at(10), &call, refused(None));
        assert_eq!(shows(&claims.step(at(29)).1), [], "it is still valid");
        let (calls, effects) = claims.step(at(30));
        assert_eq!(shows(&effects), [None]);
        assert!(matches!(claims.state("u", at(30)), State::Refused(_)));
        assert_eq!(calls, [], "the request before has no answer");
    }

    #[test]
    fn another_process_goes_on_with_the_lease() {
        let (_, effects) = granted();
        let Effect::Save(saved) = &effects[0] else { panic!("{effects:?}") };
        let mut claims = Claims::default();
        claims.insert(saved.clone(), false, at(100));
        let (calls, effects) = claims.step(at(100));
        assert_eq!(shows(&effects), [], "the file stays");
        assert_eq!(claims.state("u", at(100)), State::Asking);
        let [call] = calls.as_slice() else { panic!("{calls:?}") };
        assert!(matches!(&call.ask, Ask::Renew(hold) if hold.lease == 1));
        let effects = claims.answered(at(100), at(100), call, Ok(Some(report(1))));
        assert_eq!(shows(&effects), [Some(1)]);
        assert!(matches!(claims.state("u", at(100)), State::Ready(_)));
    }

    #[test]
    fn a_claim_that_leaves_is_released_and_forgotten() {
        let (mut claims, _) = granted();
        assert!(claims.leave("u", at(1)).unwrap().leaves);
        assert_eq!(claims.state("u", at(1)), State::Leaving);
        let call = one(&mut claims, at(1));
        assert!(matches!(call.ask, Ask::Release(_)));
        claims.answered(at(1), at(1), &call, refused(None));
        let call = one(&mut claims, at(2));
        assert!(matches!(call.ask, Ask::Release(_)), "a release that was lost is repeated");
        claims.answered(at(2), at(2), &call, Ok(None));
        let (_, effects) = claims.step(at(2));
        assert_eq!(effects.last(), Some(&Effect::Forget("u".into())));
        assert_eq!(claims.state("u", at(2)), State::Unknown);
        assert_eq!(claims.leave("u", at(2)), None);
        // A claim whose lease was refused is forgotten at once,
        claims.insert(record(), true, at(2));
        let call = one(&mut claims, at(2));
        claims.answered(at(2), at(2), &call, refused(Some(503)));
        claims.leave("u", at(3));
        assert_eq!(claims.step(at(3)).0, []);
        assert_eq!(claims.state("u", at(3)), State::Unknown);
        // and so is one without leases of the driver.
        let mut held = record();
        held.parts.remove(0);
        claims.insert(held, true, at(3));
        assert!(matches!(claims.state("u", at(3)), State::Ready(_)));
        claims.leave("u", at(3));
        assert_eq!(claims.step(at(3)), (Vec::new(), vec![Effect::Forget("u".into())]));
    }

    #[test]
    fn a_claim_that_is_released_while_it_is_read_is_not_taken() {
        let mut claims = Claims::default();
        let (first, other) = (claims.begin("u"), claims.begin("v"));
        assert_eq!(claims.leave("u", at(0)), None);
        let second = claims.begin("u");
        assert_eq!([first, other, second].map(|call| claims.end(call)), [false, true, true]);
        assert!(!claims.end(second), "it has ended");
    }

    #[test]
    fn used_up_ids_are_passed_over_and_then_slowly() {
        let mut claims = Claims::default();
        claims.insert(record(), true, at(0));
        for ended in 1..=ENDED_AT_ONCE + 1 {
            let call = one(&mut claims, at(0));
            let effects = claims.answered(at(0), at(0), &call, refused(Some(409)));
            let [Effect::Save(saved), ..] = effects.as_slice() else { panic!("{effects:?}") };
            assert_eq!(saved.parts[0].ended, ended, "the next id is stored before it is used");
        }
        assert_eq!(claims.step(at(0)).0, []);
        assert!(matches!(one(&mut claims, at(1)).ask, Ask::Grant(_)));
    }
}
