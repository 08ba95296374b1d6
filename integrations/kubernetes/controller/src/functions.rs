//! The part of the controller for functions: their instances, and their status.

use crate::controller::{Action, Controller, Made, Verb};
use crate::placing::{self, Candidate};
use crate::replicas::{self, Plan, Seen, Standing};
use crate::resources::{FunctionSpec, InstanceSpec, Key, Kind, Meta, Node, Resource, Share, Spread};
use crate::status::{self, Condition, FUNCTION, FUNCTION_FINALIZER};
use atoll_kubernetes::hold::Reason;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a node that refused an instance of a function gets no other instance of it.
const LEFT_OUT: Duration = Duration::from_secs(60);

/// If a creation or deletion has not been seen after this time, the request is sent again.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// Longest name of a function: its instances add a number, and names have at most 253 characters.
const NAME_MAX: usize = 240;

/// A daemon that did not answer so many requests for a lease counts as unreachable.
const TRIES: u32 = 3;

/// What a function states, checked.
struct Wanted {
    function: String,
    replicas: usize,
    spread: Spread,
    node_selector: BTreeMap<String, String>,
    share: Share,
}

impl Wanted {
    fn read(resource: &Resource) -> Result<Wanted, String> {
        let spec = FunctionSpec::read(&resource.spec)?;
        if spec.bundle.is_some() {
            return Err("bundles are not fetched; deploy the function to the daemons, and leave out `bundle`".into());
        }
        if resource.metadata.name.len() > NAME_MAX {
            return Err(format!("the name is longer than {NAME_MAX} characters, so its instances cannot be named"));
        }
        let FunctionSpec { function, replicas, spread, node_selector, share, .. } = spec;
        let replicas = usize::try_from(replicas).map_err(|_| "replicas is negative")?;
        Ok(Wanted { function, replicas, spread, node_selector, share: Share::read(&share)? })
    }
}

impl Controller {
    pub(crate) fn tend_function(&mut self, key: &Key, now: Duration, stamp: &str, actions: &mut Vec<Action>) {
        let Some(resource) = self.functions.get(key).cloned() else { return };
        let meta = &resource.metadata;
        if !meta.finalizers.iter().any(|one| one == FUNCTION_FINALIZER) {
            if !meta.leaves() {
                let patch = status::finalizers(meta, FUNCTION_FINALIZER, true);
                self.write(now, (Kind::Function, key), Verb::Patch(patch), actions);
            }
            return;
        }
        if meta.leaves() {
            return self.dissolve(key, &resource, now, actions);
        }
        let wanted = match Wanted::read(&resource) {
            Ok(wanted) => wanted,
            Err(message) => {
                let (count, ready) = self.counts(&meta.uid);
                let conditions = [
                    Condition::ready(false, Reason::Invalid.name(), &message),
                    progressing(false, Reason::Invalid.name()),
                ];
                let status = status::of_function(&resource, (count, ready), &conditions, stamp);
                return self.write_status(now, (Kind::Function, key), &status, stamp, actions);
            }
        };
        let seen = self.seen(&meta.uid, &wanted, now);
        let packs = wanted.spread == Spread::Pack;
        let plan = replicas::plan(wanted.replicas, &seen, packs, |node| self.crowd(node));
        for name in &plan.delete {
            self.delete_instance(&(key.0.clone(), name.clone()), now, actions);
        }
        // The node of the next instance depends on whether the last one was granted.
        let waits = packs && seen.iter().any(|one| one.standing == Standing::Waiting);
        let count = if waits { 0 } else { plan.make.min(if packs { 1 } else { usize::MAX }) };
        let no_room = self.make(&resource, &wanted, count, now, actions);
        self.tell(key, &resource, (&wanted, &seen[..], &plan), no_room, (now, stamp), actions);
    }

    /// Deletes the instances of a function that is being deleted, and removes its finalizer when they
    /// are gone.
    fn dissolve(&mut self, key: &Key, resource: &Resource, now: Duration, actions: &mut Vec<Action>) {
        let uid = &resource.metadata.uid;
        let instances = self.instances_of(uid);
        for (key, one) in &instances {
            if !one.metadata.leaves() {
                self.delete_instance(key, now, actions);
            }
        }
        if instances.is_empty() && self.made.values().all(|made| made.function != *uid) {
            let patch = status::finalizers(&resource.metadata, FUNCTION_FINALIZER, false);
            self.write(now, (Kind::Function, key), Verb::Patch(patch), actions);
        }
    }

    /// Deletes an instance whose function is gone: its creation arrived after the deletion of the
    /// function. The function may also be seen later than its instance, so there is a pause.
    pub(crate) fn delete_orphan(&mut self, key: &Key, meta: &Meta, now: Duration, actions: &mut Vec<Action>) {
        let mut owners = meta.owner_references.iter().filter(|owner| owner.kind == FUNCTION).peekable();
        let is_orphan = owners.peek().is_some()
            && owners.all(|owner| self.functions.values().all(|function| function.metadata.uid != owner.uid));
        if !is_orphan {
            self.orphaned.remove(&meta.uid);
        } else if now >= *self.orphaned.entry(meta.uid.clone()).or_insert(now) + SEEN_WITHIN {
            self.delete_instance(key, now, actions);
        }
    }

    fn delete_instance(&mut self, key: &Key, now: Duration, actions: &mut Vec<Action>) {
        let Some(uid) = self.instances.get(key).map(|one| one.metadata.uid.clone()) else { return };
        if !self.deleted.contains_key(&uid)
            && self.write(now, (Kind::Instance, key), Verb::Delete(uid.clone()), actions)
        {
            self.deleted.insert(uid, now + SEEN_WITHIN);
        }
    }

    /// The instances of a function, with those that are being deleted.
    fn instances_of(&self, function: &str) -> Vec<(Key, Resource)> {
        let is_of = |one: &Resource| one.metadata.owner_references.iter().any(|owner| owner.uid == function);
        self.instances.iter().filter(|(_, one)| is_of(one)).map(|(key, one)| (key.clone(), one.clone())).collect()
    }

    /// How many instances there are, and how many of them are ready.
    fn counts(&self, function: &str) -> (usize, usize) {
        let all = self.instances_of(function);
        let live: Vec<_> = all.iter().filter(|(_, one)| !one.metadata.leaves()).collect();
        (live.len(), live.iter().filter(|(_, one)| status::is_ready(&one.status)).count())
    }

    /// The instances of a function that are not being deleted, and those that were made a moment
    /// ago. Notes why instances failed.
    fn seen(&mut self, function: &str, wanted: &Wanted, now: Duration) -> Vec<Seen> {
        let mut seen = Vec::new();
        for ((_, name), one) in self.instances_of(function) {
            let uid = &one.metadata.uid;
            if one.metadata.leaves() || self.deleted.contains_key(uid) {
                continue;
            }
            let spec = serde_json::from_value::<InstanceSpec>(one.spec.clone()).ok();
            let node = spec.as_ref().map(|spec| spec.node_name.clone()).unwrap_or_default();
            let has_share = spec.is_some_and(|spec| {
                spec.function == wanted.function && Share::read(&spec.share).is_ok_and(|share| share == wanted.share)
            });
            let fits = has_share && self.may_have(&node, wanted);
            let (standing, problem) = self.standing(&one, now);
            if let Some((reason, message)) = problem {
                if reason != Reason::Ended {
                    self.left_out.insert((function.into(), node.clone()), now + LEFT_OUT);
                }
                self.problems.insert(function.into(), (reason, format!("{name} on {node}: {message}")));
            }
            seen.push(Seen { name, node, standing, fits });
        }
        let made = self.made.iter().filter(|(_, made)| made.function == function);
        seen.extend(made.map(|((_, name), made)| {
            let (name, node) = (name.clone(), made.node.clone());
            Seen { name, node, standing: Standing::Waiting, fits: true }
        }));
        seen
    }

    /// The state of an instance, and why it failed. It is ready when clients can see the lease.
    fn standing(&self, one: &Resource, now: Duration) -> (Standing, Option<(Reason, String)>) {
        let Some(held) = self.holds.get(&one.metadata.uid) else { return (Standing::Waiting, None) };
        match held.hold.ready(now) {
            None => (Standing::Ready, None),
            Some((Reason::Granted, _)) if status::is_ready(&one.status) => (Standing::Ready, None),
            Some((Reason::Granted | Reason::Asking, _)) => (Standing::Waiting, None),
            Some((Reason::NoDaemon, _)) if held.hold.lease().is_none() && held.hold.failures() < TRIES => {
                (Standing::Waiting, None)
            }
            Some(problem) => (Standing::Failed, Some(problem)),
        }
    }

    /// Whether a node may have instances of a function.
    fn may_have(&self, node: &str, wanted: &Wanted) -> bool {
        self.is_open(node) && self.nodes.get(node).is_some_and(|node| node.has(&wanted.node_selector))
    }

    /// Instances on a node, with those that were made a moment ago.
    fn crowd(&self, node: &str) -> usize {
        let is_there = |one: &&Resource| one.spec["nodeName"] == node && !one.metadata.leaves();
        let made = self.made.values().filter(|made| made.node == node).count();
        self.instances.values().filter(is_there).count() + made
    }

    /// Makes at most `count` instances. Returns the reason if no node has room for one.
    fn make(
        &mut self,
        resource: &Resource,
        wanted: &Wanted,
        count: usize,
        now: Duration,
        actions: &mut Vec<Action>,
    ) -> Option<(Reason, String)> {
        for _ in 0..count {
            let candidates = self.candidates(&resource.metadata.uid, wanted, now);
            let Some(node) = placing::place(&candidates, &wanted.share, wanted.spread).map(str::to_owned) else {
                return Some(placing::why_not(&candidates, &wanted.share));
            };
            let (namespace, name) = resource.metadata.key();
            let is_used = |key: &Key| self.instances.contains_key(key) || self.made.contains_key(key);
            let mut keys = (0usize..).map(|number| (namespace.clone(), format!("{name}-{number}")));
            let key = keys.find(|key| !is_used(key))?;
            let body = status::new_instance(resource, &key.1, &node);
            if !self.write(now, (Kind::Instance, &key), Verb::Create(body), actions) {
                return None;
            }
            let (function, until) = (resource.metadata.uid.clone(), now + SEEN_WITHIN);
            self.made.insert(key, Made { function, node, until });
        }
        None
    }

    /// The nodes that may have an instance of a function. A node with an instance that waits for its
    /// lease is left out, since its capacity is about to change.
    fn candidates<'a>(&'a self, function: &str, wanted: &Wanted, now: Duration) -> Vec<Candidate<'a>> {
        let nodes = self.nodes.iter().filter(|(node, _)| self.may_have(node, wanted));
        let candidate = |(node, _): (&'a String, &'a Node)| {
            let there = |one: &&Resource| one.spec["nodeName"] == node.as_str();
            let live = || self.instances.values().filter(there).filter(|one| !one.metadata.leaves());
            let is_of = |one: &&Resource| one.metadata.owner_references.iter().any(|owner| owner.uid == function);
            let waits = live().any(|one| self.standing(one, now).0 == Standing::Waiting);
            let known = self.known.get(node);
            let has_failed = known.is_some_and(|known| known.has_failed) || self.daemon(node).is_none();
            let is_unasked = known.is_none_or(|known| known.report.is_none()) && !has_failed;
            let made = || self.made.values().filter(|made| made.node == *node);
            let refused = self.left_out.contains_key(&(function.to_owned(), node.clone()));
            Candidate {
                node,
                report: known.and_then(|known| known.report.as_ref()),
                of_function: live().filter(is_of).count() + made().filter(|made| made.function == function).count(),
                instances: live().count() + made().count(),
                is_left_out: refused,
                is_pending: waits || made().count() > 0 || is_unasked,
            }
        };
        nodes.map(candidate).collect()
    }

    /// Writes the status of a function.
    fn tell(
        &mut self,
        key: &Key,
        resource: &Resource,
        (wanted, seen, plan): (&Wanted, &[Seen], &Plan),
        no_room: Option<(Reason, String)>,
        (now, stamp): (Duration, &str),
        actions: &mut Vec<Action>,
    ) {
        let uid = &resource.metadata.uid;
        let ready = seen.iter().filter(|one| one.standing == Standing::Ready).count();
        let is_complete = ready >= wanted.replicas && seen.iter().all(|one| one.fits);
        let is_idle = plan.make == 0 && plan.delete.is_empty();
        if is_complete {
            self.problems.remove(uid);
        }
        let (reason, why) = match (no_room, self.problems.get(uid)) {
            (Some(no_room), _) => no_room,
            (None, Some(problem)) => problem.clone(),
            (None, None) => (Reason::Asking, "the daemons were asked for leases".into()),
        };
        let ready_condition = match is_complete {
            true => Condition::ready(true, Reason::Granted.name(), ""),
            false => {
                let message = format!("{ready} of {} instances are ready: {why}", wanted.replicas);
                Condition::ready(false, reason.name(), &message)
            }
        };
        let reason = if is_complete && is_idle { "Complete" } else { "Changing" };
        let conditions = [ready_condition, progressing(!(is_complete && is_idle), reason)];
        let status = status::of_function(resource, (seen.len(), ready), &conditions, stamp);
        self.write_status(now, (Kind::Function, key), &status, stamp, actions);
    }
}

fn progressing(is_true: bool, reason: &'static str) -> Condition {
    Condition { kind: "Progressing", is_true, reason, message: String::new() }
}
