//! Which of several controllers is the leader, by a `Lease` of the API server. No clock and no
//! connection.
//!
//! The times in the lease are for readers only. A controller takes over a lease that has not changed
//! for its duration by the controller's own clock, so clocks that differ or step have no effect.

use serde_json::{Value, json};
use std::time::Duration;

/// A leader that does not renew for this long is replaced.
pub(crate) const DURATION: Duration = Duration::from_secs(15);

/// A leader acts for this long after it *sent* its last renewal.
const LEADS_FOR: Duration = Duration::from_secs(10);

/// Name of the lease.
pub(crate) const NAME: &str = "atoll-controller";

/// A candidate.
#[derive(Debug)]
pub(crate) struct Election {
    me: String,
    namespace: String,
    /// The version of another one's lease, and since when it has not changed.
    seen: Option<(String, Duration)>,
    leads_until: Duration,
}

impl Election {
    /// A candidate with a name that no other process has.
    pub(crate) fn new(me: String, namespace: &str) -> Election {
        Election { me, namespace: namespace.into(), seen: None, leads_until: Duration::ZERO }
    }

    /// Whether this one is the leader.
    pub(crate) fn leads(&self, now: Duration) -> bool {
        now < self.leads_until
    }

    /// Takes the present lease. Returns the lease to write, if this one is or becomes the leader.
    pub(crate) fn read(&mut self, now: Duration, lease: Option<&Value>, stamp: &str) -> Option<Value> {
        let Some(lease) = lease else { return Some(self.lease(&Value::Null, 0, stamp, stamp)) };
        let (spec, version) = (&lease["spec"], &lease["metadata"]["resourceVersion"]);
        let holder = spec["holderIdentity"].as_str().unwrap_or_default();
        let changes = spec["leaseTransitions"].as_i64().unwrap_or(0);
        if holder == self.me {
            let since = spec["acquireTime"].as_str().unwrap_or(stamp);
            return Some(self.lease(version, changes, since, stamp));
        }
        // It has a new leader.
        self.leads_until = Duration::ZERO;
        let version_text = version.as_str().unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if seen == version_text => *since,
            _ => self.seen.insert((version_text.into(), now)).1,
        };
        let seconds = spec["leaseDurationSeconds"].as_u64().unwrap_or(DURATION.as_secs()).clamp(1, 600);
        let is_over = holder.is_empty() || now >= since + Duration::from_secs(seconds);
        is_over.then(|| self.lease(version, changes.saturating_add(1), stamp, stamp))
    }

    /// Takes the result of writing the lease, which was sent at `sent`.
    pub(crate) fn written(&mut self, sent: Duration, is_done: bool) {
        if is_done {
            self.leads_until = sent + LEADS_FOR;
        }
    }

    /// The lease to write so that another one becomes the leader at once. `None` if this one does
    /// not lead.
    pub(crate) fn resign(&mut self, lease: &Value, stamp: &str) -> Option<Value> {
        self.leads_until = Duration::ZERO;
        if lease["spec"]["holderIdentity"] != self.me.as_str() {
            return None;
        }
        let changes = lease["spec"]["leaseTransitions"].as_i64().unwrap_or(0);
        let mut lease = self.lease(&lease["metadata"]["resourceVersion"], changes, stamp, stamp);
        lease["spec"]["holderIdentity"] = "".into();
        Some(lease)
    }

    fn lease(&self, version: &Value, changes: i64, since: &str, stamp: &str) -> Value {
        let mut lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": NAME, "namespace": self.namespace },
            "spec": {
                "holderIdentity": self.me,
                "leaseDurationSeconds": DURATION.as_secs(),
                "acquireTime": since,
                "renewTime": stamp,
                "leaseTransitions": changes,
            },
        });
        if !version.is_null() {
            lease["metadata"]["resourceVersion"] = version.clone();
        }
        lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The lease at the API server.
    #[derive(Default)]
    struct Server {
        lease: Option<Value>,
        version: u64,
    }

    impl Server {
        /// Writes a lease if it was read at the present version.
        fn write(&mut self, mut lease: Value) -> bool {
            let present = self.lease.as_ref().map_or(Value::Null, |lease| lease["metadata"]["resourceVersion"].clone());
            if lease["metadata"]["resourceVersion"] != present {
                return false;
            }
            self.version += 1;
            lease["metadata"]["resourceVersion"] = self.version.to_string().into();
            self.lease = Some(lease);
            true
        }
    }

    fn turn(one: &mut Election, server: &mut Server, now: Duration) -> bool {
        if let Some(lease) = one.read(now, server.lease.as_ref(), "t") {
            let is_done = server.write(lease);
            one.written(now, is_done);
        }
        one.leads(now)
    }

    #[test]
    fn one_leads_until_it_is_silent() {
        let (mut server, mut a, mut b) =
            (Server::default(), Election::new("a".into(), "n"), Election::new("b".into(), "n"));
        assert!(turn(&mut a, &mut server, at(0)));
        for now in (2..60).step_by(2) {
            assert!(turn(&mut a, &mut server, at(now)) && !turn(&mut b, &mut server, at(now + 1)));
        }
        // a is silent from 58 on. Its last renewal was seen at 59.
        for now in 60..74 {
            assert!(!turn(&mut b, &mut server, at(now)), "{now}");
        }
        assert!(!a.leads(at(68)), "it stops before another one begins");
        assert!(turn(&mut b, &mut server, at(74)));
        assert!(!turn(&mut a, &mut server, at(75)), "it sees the new leader");
        assert_eq!(server.lease.as_ref().unwrap()["spec"]["leaseTransitions"], 1);
    }

    #[test]
    fn of_two_that_take_over_one_succeeds() {
        let mut server = Server::default();
        let (mut a, mut b) = (Election::new("a".into(), "n"), Election::new("b".into(), "n"));
        let (first, second) = (a.read(at(0), None, "t").unwrap(), b.read(at(0), None, "t").unwrap());
        let (of_a, of_b) = (server.write(first), server.write(second));
        a.written(at(0), of_a);
        b.written(at(0), of_b);
        assert!(a.leads(at(0)) && !b.leads(at(0)));
        // A renewal that is refused extends nothing.
        a.written(at(5), false);
        assert!(!a.leads(at(10)));
    }

    #[test]
    fn a_leader_that_ends_is_replaced_at_once() {
        let (mut server, mut a, mut b) =
            (Server::default(), Election::new("a".into(), "n"), Election::new("b".into(), "n"));
        assert!(turn(&mut a, &mut server, at(0)));
        let lease = a.resign(server.lease.as_ref().unwrap(), "t").unwrap();
        assert!(server.write(lease) && !a.leads(at(0)));
        assert!(turn(&mut b, &mut server, at(1)));
        assert!(a.resign(server.lease.as_ref().unwrap(), "t").is_none(), "it is another one's");
    }
}
