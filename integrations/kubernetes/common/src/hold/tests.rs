//! The holder with the answers of a daemon, at given times.

use super::*;

const DRAIN: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn spec() -> LeaseSpec {
    LeaseSpec { request_id: "u".into(), holder: "h".into(), ttl_s: 15, ..LeaseSpec::default() }
}

fn report() -> LeaseReport {
    LeaseReport {
        lease: 1,
        epoch: 2,
        tenant: atoll_client::Tenant::default(),
        holder: "h".into(),
        function: "f".into(),
        instance: "lease-1".into(),
        device: "host:0".into(),
        class: None,
        sm_partition: 24.0,
        quota_request: 1.0,
        quota_limit: 1.0,
        gpu_mem: 1,
        real_time_slots: 0,
        ttl_s: 15,
        expires_in_ms: 15_000,
    }
}

fn refused(status: u16) -> Result<Option<LeaseReport>, Refused> {
    Err(Refused { status: Some(status), message: format!("refused with {status}") })
}

fn lost() -> Result<Option<LeaseReport>, Refused> {
    Err(Refused { status: None, message: "lost".into() })
}

fn reason(hold: &Hold, now: Duration) -> Option<Reason> {
    hold.ready(now).map(|(reason, _)| reason)
}

/// Sends what is due and gives the answer at the same time.
fn turn(hold: &mut Hold, now: Duration, answer: Result<Option<LeaseReport>, Refused>) -> Option<Ask> {
    let ask = hold.next(now, DRAIN)?;
    assert_eq!(hold.next(now, DRAIN), None, "one request at a time");
    hold.answered(now, now, &ask, answer);
    Some(ask)
}

#[test]
fn a_lease_is_granted_with_one_id_and_renewed_three_times_in_its_time_to_live() {
    let mut hold = Hold::new(spec(), None, at(0));
    assert_eq!(reason(&hold, at(0)), Some(Reason::Asking));
    for (now, answer, why) in
        [(0, lost(), Reason::NoDaemon), (1, refused(503), Reason::NoRoom), (3, refused(404), Reason::Refused)]
    {
        assert_eq!(turn(&mut hold, at(now), answer), Some(Ask::Grant(spec())));
        assert_eq!(reason(&hold, at(now)), Some(why));
        assert_eq!(hold.next(at(now), DRAIN), None, "there is a pause");
    }
    assert_eq!(turn(&mut hold, at(7), Ok(Some(report()))), Some(Ask::Grant(spec())));
    assert_eq!(reason(&hold, at(21)), Some(Reason::Granted));
    assert_eq!(hold.next(at(11), DRAIN), None);
    let renew = Ask::Renew(LeaseHold { lease: 1, epoch: 2, holder: "h".into() });
    assert_eq!(turn(&mut hold, at(12), lost()), Some(renew.clone()));
    assert_eq!(reason(&hold, at(22)), Some(Reason::NoDaemon), "it counts from the grant");
    assert_eq!(turn(&mut hold, at(23), Ok(Some(report()))), Some(renew));
    assert_eq!(reason(&hold, at(37)), Some(Reason::Granted));
}

#[test]
fn a_lease_that_has_ended_is_not_asked_for_again() {
    for (is_held, status) in [(false, 409), (true, 404), (true, 409)] {
        let mut hold = Hold::new(spec(), None, at(0));
        if is_held {
            turn(&mut hold, at(0), Ok(Some(report())));
        }
        turn(&mut hold, at(5), refused(status));
        assert_eq!(reason(&hold, at(5)), Some(Reason::Ended));
        assert_eq!(hold.next(at(600), DRAIN), None);
        assert!(hold.lease().is_none() && !hold.is_gone());
        hold.leave(at(600));
        assert_eq!(hold.next(at(600), DRAIN), None);
        assert!(hold.is_gone());
    }
}

#[test]
fn a_deleted_instance_is_drained_and_then_released() {
    let mut hold = Hold::new(spec(), None, at(0));
    turn(&mut hold, at(0), Ok(Some(report())));
    hold.publish();
    hold.leave(at(1));
    assert_eq!(reason(&hold, at(1)), Some(Reason::Draining));
    // It is renewed while requests of clients run.
    assert!(matches!(turn(&mut hold, at(6), Ok(Some(report()))), Some(Ask::Renew(_))));
    assert!(matches!(turn(&mut hold, at(11), lost()), Some(Ask::Release(_))));
    assert!(!hold.is_gone());
    assert!(matches!(turn(&mut hold, at(12), Ok(None)), Some(Ask::Release(_))));
    assert!(hold.is_gone());
}

#[test]
fn an_instance_that_is_deleted_during_its_grant_leaves_no_lease() {
    // The answer to the grant is on its way.
    let mut hold = Hold::new(spec(), None, at(0));
    let ask = hold.next(at(0), DRAIN).unwrap();
    hold.leave(at(0));
    hold.answered(at(0), at(1), &ask, Ok(Some(report())));
    assert!(matches!(turn(&mut hold, at(1), Ok(None)), Some(Ask::Release(_))), "no client knows it");
    assert!(hold.is_gone());
    // An earlier leader asked, and it is not known with which success.
    let mut hold = Hold::new(spec(), None, at(0));
    hold.leave(at(0));
    assert_eq!(turn(&mut hold, at(0), Ok(Some(report()))), Some(Ask::Grant(spec())));
    assert!(matches!(turn(&mut hold, at(0), Ok(None)), Some(Ask::Release(_))));
    assert!(hold.is_gone());
    let mut hold = Hold::new(spec(), None, at(0));
    hold.leave(at(0));
    turn(&mut hold, at(0), refused(400));
    assert!(hold.is_gone(), "the daemon has granted nothing");
    // A request of an earlier leader may still be granted.
    for status in [401, 429, 500, 503] {
        let mut hold = Hold::new(spec(), None, at(0));
        hold.leave(at(0));
        turn(&mut hold, at(0), refused(status));
        assert!(!hold.is_gone(), "{status}");
        assert_eq!(turn(&mut hold, at(1), Ok(Some(report()))), Some(Ask::Grant(spec())));
        assert!(matches!(turn(&mut hold, at(1), Ok(None)), Some(Ask::Release(_))));
        assert!(hold.is_gone());
    }
}

#[test]
fn a_lease_that_was_refused_to_the_only_one_who_asked_needs_no_release() {
    let mut hold = Hold::new(spec(), None, at(0)).alone();
    turn(&mut hold, at(0), refused(503));
    hold.leave(at(0));
    assert!(hold.is_gone());
    // An answer was lost: the daemon may have granted the lease.
    let mut hold = Hold::new(spec(), None, at(0)).alone();
    turn(&mut hold, at(0), lost());
    hold.leave(at(1));
    assert!(matches!(turn(&mut hold, at(1), Ok(Some(report()))), Some(Ask::Grant(_))) && !hold.is_gone());
    // A later refusal for lack of room says nothing about the request whose answer was lost.
    let mut hold = Hold::new(spec(), None, at(0)).alone();
    turn(&mut hold, at(0), lost());
    turn(&mut hold, at(1), refused(503));
    hold.leave(at(1));
    assert!(!hold.is_gone());
    turn(&mut hold, at(3), Ok(Some(report())));
    assert!(matches!(turn(&mut hold, at(3), Ok(None)), Some(Ask::Release(_))) && hold.is_gone());
}

#[test]
fn a_daemon_that_never_answers_keeps_no_instance_forever() {
    let mut hold = Hold::new(spec(), None, at(0));
    turn(&mut hold, at(0), Ok(Some(report())));
    hold.publish();
    hold.leave(at(1));
    for now in 2..45 {
        turn(&mut hold, at(now), lost());
        assert!(!hold.is_gone(), "{now}");
    }
    turn(&mut hold, at(46), lost());
    assert!(hold.is_gone(), "the lease has ended by its time to live");
}

#[test]
fn a_new_leader_renews_the_lease_of_the_status() {
    let lease = Lease::of(&report());
    let mut hold = Hold::new(spec(), Some(lease.clone()), at(100));
    assert_eq!(reason(&hold, at(100)), None, "the status stays");
    assert_eq!(reason(&hold, at(105)), Some(Reason::NoDaemon));
    assert_eq!(turn(&mut hold, at(100), Ok(Some(report()))), Some(Ask::Renew(lease.hold())));
    assert_eq!(reason(&hold, at(105)), Some(Reason::Granted));
}

#[test]
fn pauses_grow_and_are_bounded() {
    let pauses: Vec<u64> = [0, 1, 2, 3, 4, 5, 100].map(|failures| backoff(failures).as_secs()).into();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
}
