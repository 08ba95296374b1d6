//! The controller: decides what to ask the daemons and what to write to the API server, from the
//! reports of both. No clock, no thread and no connection.

use crate::resources::{Daemon, InstanceSpec, KINDS, Key, Kind, Node, Resource, Share};
use crate::status::{self, INSTANCE, INSTANCE_FINALIZER};
use atoll_client::{CapacityReport, LeaseHold};
use atoll_kubernetes::daemon::Answer;
use atoll_kubernetes::hold::{Hold, Lease, Reason};
use atoll_kubernetes::request::{Ask, Refused};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Longest pause before a write that failed is sent again.
const WRITE_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Pause between two reports of capacity of a daemon.
const CAPACITY_PAUSE: Duration = Duration::from_secs(3);

/// How long a report of capacity is valid.
const CAPACITY_AGE_MAX: Duration = Duration::from_secs(15);

/// Number of UIDs of resources that are gone which are remembered: more than the changes that an
/// answer to a write can overtake.
const GONE_MAX: usize = 1024;

/// Settings of a controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// How long requests of clients may go on after the deletion of an instance.
    pub(crate) drain: Duration,
    /// Labels of the nodes that may get instances.
    pub(crate) nodes: BTreeMap<String, String>,
}

/// A change that the API server reports.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// All resources of a kind.
    Listed(Kind, Vec<Resource>),
    /// A resource is new, or has changed.
    Set(Kind, Box<Resource>),
    /// The resource with this UID is gone.
    Gone(Kind, Key, String),
}

/// A request to a daemon or to the API server.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Send a request to a daemon, as the tenant of a namespace.
    Ask(Call),
    /// Write to the API server.
    Write(Write),
}

/// A request to a daemon.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) daemon: Daemon,
    pub(crate) namespace: String,
    /// UID of the instance; empty for reports of capacity.
    pub(crate) uid: String,
    pub(crate) ask: Ask,
}

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Write {
    /// `None` for events.
    pub(crate) kind: Option<Kind>,
    pub(crate) key: Key,
    pub(crate) verb: Verb,
}

/// What to write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verb {
    /// Make a resource.
    Create(Value),
    /// Change some fields.
    Patch(Value),
    /// Change some fields of the status.
    PatchStatus(Value),
    /// Delete the resource with this UID.
    Delete(String),
}

/// Writes to one resource.
#[derive(Clone, Debug, Default)]
struct Writing {
    is_sent: bool,
    /// The version that was known when the last write was sent.
    version: Option<String>,
    failures: u32,
    not_before: Duration,
}

/// What a daemon reports about its devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) report: Option<CapacityReport>,
    /// Whether the last request for a report failed.
    pub(crate) has_failed: bool,
    at: Duration,
    is_asking: bool,
    ask_at: Duration,
    /// Time of the last grant or release; reports from before it are outdated.
    changed_at: Duration,
    /// Index of the namespace whose token is used, modulo the number of namespaces.
    namespace: usize,
    /// Number of consecutive requests whose token was refused.
    denials: usize,
}

/// The holder of a lease, with its node and namespace.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) hold: Hold,
    node: String,
    namespace: String,
}

/// An instance whose creation was sent and has not been seen yet.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) function: String,
    pub(crate) node: String,
    pub(crate) until: Duration,
}

/// The controller. Several may run; only the leader calls [`Controller::step`].
#[derive(Default)]
pub(crate) struct Controller {
    pub(crate) settings: Settings,
    listed: BTreeSet<Kind>,
    pub(crate) functions: BTreeMap<Key, Resource>,
    pub(crate) instances: BTreeMap<Key, Resource>,
    pub(crate) nodes: BTreeMap<String, Node>,
    pods: BTreeMap<Key, Daemon>,
    /// By UID of the instance.
    pub(crate) holds: BTreeMap<String, Held>,
    pub(crate) known: BTreeMap<String, Known>,
    writing: BTreeMap<(Kind, Key), Writing>,
    pub(crate) made: BTreeMap<Key, Made>,
    /// Instances whose deletion was sent and has not been seen yet, by UID.
    pub(crate) deleted: BTreeMap<String, Duration>,
    /// Nodes that refused an instance of a function, by UID of the function, until when.
    pub(crate) left_out: BTreeMap<(String, String), Duration>,
    /// The last failure of an instance of each function, by UID of the function.
    pub(crate) problems: BTreeMap<String, (Reason, String)>,
    /// Instances whose function is not there, by UID, and since when.
    pub(crate) orphaned: BTreeMap<String, Duration>,
    /// UIDs of functions and instances that are gone. Names are used again, and reports of the API
    /// server may be later than its answers to writes.
    gone: VecDeque<String>,
    /// Leases of instances that are gone.
    orphans: Vec<(String, String, LeaseHold)>,
}

impl Controller {
    pub(crate) fn new(settings: Settings) -> Controller {
        Controller { settings, ..Controller::default() }
    }

    /// Takes a change that the API server reports.
    pub(crate) fn observe(&mut self, change: Change) {
        match change {
            Change::Listed(kind, all) => {
                match kind {
                    Kind::Function => self.functions.clear(),
                    Kind::Instance => self.instances.clear(),
                    Kind::Node => self.nodes.clear(),
                    Kind::Pod => self.pods.clear(),
                }
                all.into_iter().for_each(|one| self.set(kind, one));
                self.listed.insert(kind);
            }
            Change::Set(kind, resource) => self.set(kind, *resource),
            Change::Gone(kind, key, uid) => self.remove(kind, &key, &uid),
        }
    }

    fn set(&mut self, kind: Kind, resource: Resource) {
        let key = resource.metadata.key();
        if self.gone.contains(&resource.metadata.uid) {
            return;
        }
        match kind {
            Kind::Function => drop(self.functions.insert(key, resource)),
            Kind::Instance => {
                self.made.remove(&key);
                self.instances.insert(key, resource);
            }
            Kind::Node => drop(self.nodes.insert(resource.metadata.name.clone(), Node::of(&resource))),
            Kind::Pod => match Daemon::of(&resource) {
                Some(daemon) => drop(self.pods.insert(key, daemon)),
                None => drop(self.pods.remove(&key)),
            },
        }
    }

    /// Removes a resource, but not another one that has its name now.
    fn remove(&mut self, kind: Kind, key: &Key, uid: &str) {
        let all = match kind {
            Kind::Function => &mut self.functions,
            Kind::Instance => &mut self.instances,
            // Their changes arrive in order, since nothing is written to them.
            Kind::Node => return drop(self.nodes.remove(&key.1)),
            Kind::Pod => return drop(self.pods.remove(key)),
        };
        if all.get(key).is_some_and(|one| one.metadata.uid == uid) {
            all.remove(key);
        }
        if !uid.is_empty() && !self.gone.iter().any(|known| known == uid) {
            self.gone.truncate(GONE_MAX - 1);
            self.gone.push_front(uid.into());
        }
    }

    /// The version of a function or an instance that was seen last.
    fn version(&self, kind: Kind, key: &Key) -> Option<String> {
        let all = if kind == Kind::Function { &self.functions } else { &self.instances };
        all.get(key).map(|one| one.metadata.resource_version.clone())
    }

    /// The daemon of a node.
    pub(crate) fn daemon(&self, node: &str) -> Option<&Daemon> {
        self.pods.values().find(|daemon| daemon.node == node)
    }

    /// Whether a node may get instances.
    pub(crate) fn is_open(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|node| node.is_open && node.has(&self.settings.nodes))
    }

    /// Takes the answer of a daemon to a request that was sent at `sent`.
    pub(crate) fn answered(&mut self, sent: Duration, now: Duration, call: &Call, answer: Result<Answer, Refused>) {
        let node = &call.daemon.node;
        if call.ask == Ask::Capacity {
            let known = self.known.entry(node.clone()).or_default();
            (known.is_asking, known.has_failed) = (false, !matches!(answer, Ok(Answer::Capacity(_))));
            // Another namespace may have a valid token.
            match &answer {
                Err(Refused { status: Some(401 | 403), .. }) => {
                    (known.namespace, known.denials) = (known.namespace.wrapping_add(1), known.denials + 1);
                }
                _ => known.denials = 0,
            }
            match answer {
                Ok(Answer::Capacity(_)) if sent < known.changed_at => known.ask_at = now,
                Ok(Answer::Capacity(report)) => (known.report, known.at) = (Some(report), sent),
                Ok(Answer::Lease(_)) | Err(_) => known.report = None,
            }
            return;
        }
        let answer = match answer {
            Ok(Answer::Lease(lease)) => Ok(lease.map(|lease| *lease)),
            Ok(Answer::Capacity(_)) => Ok(None),
            Err(refused) => Err(refused),
        };
        // The capacity has changed.
        if answer.is_ok() && !matches!(call.ask, Ask::Renew(_)) {
            let known = self.known.entry(node.clone()).or_default();
            (known.report, known.changed_at, known.ask_at) = (None, now, now);
        }
        match self.holds.get_mut(&call.uid) {
            Some(held) => held.hold.answered(sent, now, &call.ask, answer),
            // The instance disappeared during the grant.
            None => {
                if let (Ask::Grant(_), Ok(Some(report))) = (&call.ask, &answer) {
                    self.orphans.push((node.clone(), call.namespace.clone(), Lease::of(report).hold()));
                }
            }
        }
    }

    /// Takes the result of a write: the resource as it is now, if the API server sent it, or the
    /// status of the refusal.
    pub(crate) fn written(&mut self, now: Duration, write: &Write, result: Result<Option<Resource>, Refused>) {
        let Some(kind) = write.kind else { return };
        let version = self.version(kind, &write.key);
        let writing = self.writing.entry((kind, write.key.clone())).or_default();
        writing.is_sent = false;
        // A change that was reported in the meantime may be later than the answer.
        let is_latest = writing.version == version;
        match result {
            Ok(resource) => {
                (writing.failures, writing.not_before) = (0, now);
                if let Some(resource) = resource.filter(|resource| resource.metadata.key() == write.key) {
                    match resource.metadata.leaves() && resource.metadata.finalizers.is_empty() {
                        true => self.remove(kind, &write.key, &resource.metadata.uid),
                        false if is_latest => self.set(kind, resource),
                        false => {}
                    }
                }
            }
            Err(refused) => {
                writing.failures = writing.failures.saturating_add(1);
                let pause = Duration::from_millis(250).saturating_mul(1 << writing.failures.min(8));
                writing.not_before = now + pause.min(WRITE_PAUSE_MAX);
                // An instance of this name that was not seen yet is no problem.
                if matches!((&write.verb, refused.status), (Verb::Create(_), Some(status)) if status != 409)
                    && let Some(made) = self.made.remove(&write.key)
                {
                    let message = format!("{} cannot be created: {}", write.key.1, refused.message);
                    self.problems.insert(made.function, (Reason::NotCreated, message));
                }
            }
        }
    }

    /// Sends a write, unless one to the same resource is on its way or failed a moment ago.
    pub(crate) fn write(
        &mut self,
        now: Duration,
        (kind, key): (Kind, &Key),
        verb: Verb,
        actions: &mut Vec<Action>,
    ) -> bool {
        let version = self.version(kind, key);
        let writing = self.writing.entry((kind, key.clone())).or_default();
        if writing.is_sent || now < writing.not_before {
            return false;
        }
        (writing.is_sent, writing.version) = (true, version);
        actions.push(Action::Write(Write { kind: Some(kind), key: key.clone(), verb }));
        true
    }

    /// Writes a status if it differs, and an event if its reason is new.
    pub(crate) fn write_status(
        &mut self,
        now: Duration,
        (kind, key): (Kind, &Key),
        status: &Value,
        stamp: &str,
        actions: &mut Vec<Action>,
    ) {
        let (name, all) = match kind {
            Kind::Function => (status::FUNCTION, &self.functions),
            _ => (INSTANCE, &self.instances),
        };
        let Some(before) = all.get(key).filter(|before| status::differs(&before.status, status)) else { return };
        let event = status::event(name, before, status, stamp);
        let body = serde_json::json!({ "status": status });
        if self.write(now, (kind, key), Verb::PatchStatus(body), actions)
            && let Some(event) = event
        {
            actions.push(Action::Write(Write { kind: None, key: key.clone(), verb: Verb::Create(event) }));
        }
    }

    /// What to do now. `stamp` is the time of day, for statuses. The caller calls this again after
    /// each change, answer or result, and a few times a second.
    pub(crate) fn step(&mut self, now: Duration, stamp: &str) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.listed.len() < KINDS.len() {
            return actions;
        }
        self.forget(now, &mut actions);
        let instances: Vec<Key> = self.instances.keys().cloned().collect();
        instances.iter().for_each(|key| self.tend_instance(key, now, stamp, &mut actions));
        let functions: Vec<Key> = self.functions.keys().cloned().collect();
        functions.iter().for_each(|key| self.tend_function(key, now, stamp, &mut actions));
        self.ask_capacities(now, &mut actions);
        actions
    }

    /// Drops the state of resources that are gone, and releases their leases.
    fn forget(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let uids: BTreeSet<&String> = self.instances.values().map(|one| &one.metadata.uid).collect();
        let gone: Vec<String> = self.holds.keys().filter(|uid| !uids.contains(uid)).cloned().collect();
        for uid in gone {
            let Some(Held { hold, node, namespace }) = self.holds.remove(&uid) else { continue };
            if let Some(lease) = hold.lease().filter(|_| !hold.is_gone()) {
                self.orphans.push((node, namespace, lease.hold()));
            }
        }
        for (node, namespace, hold) in std::mem::take(&mut self.orphans) {
            // Without an answer the lease ends by its time to live.
            if let Some(daemon) = self.daemon(&node).cloned() {
                actions.push(Action::Ask(Call { daemon, namespace, uid: String::new(), ask: Ask::Release(hold) }));
            }
        }
        let uids: BTreeSet<&String> = self.instances.values().map(|one| &one.metadata.uid).collect();
        self.orphaned.retain(|uid, _| uids.contains(uid));
        self.made.retain(|_, made| now < made.until);
        self.deleted.retain(|_, until| now < *until);
        self.left_out.retain(|_, until| now < *until);
        let functions: BTreeSet<&String> = self.functions.values().map(|one| &one.metadata.uid).collect();
        self.problems.retain(|uid, _| functions.contains(uid));
        let Controller { writing, functions, instances, .. } = self;
        writing.retain(|(kind, key), writing| {
            let is_there =
                if *kind == Kind::Function { functions.contains_key(key) } else { instances.contains_key(key) };
            is_there || writing.is_sent || now < writing.not_before
        });
        for known in self.known.values_mut().filter(|known| now >= known.at + CAPACITY_AGE_MAX) {
            known.report = None;
        }
    }

    fn tend_instance(&mut self, key: &Key, now: Duration, stamp: &str, actions: &mut Vec<Action>) {
        let Some(resource) = self.instances.get(key).cloned() else { return };
        let meta = &resource.metadata;
        if !meta.finalizers.iter().any(|one| one == INSTANCE_FINALIZER) {
            // A lease is asked for only if the instance cannot disappear without its release.
            if !meta.leaves() {
                let patch = status::finalizers(meta, INSTANCE_FINALIZER, true);
                self.write(now, (Kind::Instance, key), Verb::Patch(patch), actions);
            }
            return;
        }
        if !meta.leaves() {
            self.delete_orphan(key, meta, now, actions);
        }
        let read = serde_json::from_value::<InstanceSpec>(resource.spec.clone()).map_err(|error| error.to_string());
        let spec =
            read.and_then(|spec| Ok((Share::read(&spec.share)?.lease(&spec.function, &meta.uid), spec.node_name)));
        let (spec, node) = match spec {
            Ok(spec) => spec,
            Err(_) if meta.leaves() => return self.let_go(key, &resource, now, actions),
            Err(message) => {
                let status = status::of_instance(&resource, (Reason::Invalid, &message), None, None, stamp);
                return self.write_status(now, (Kind::Instance, key), &status, stamp, actions);
            }
        };
        let daemon = self.daemon(&node).cloned();
        let held = self.holds.entry(meta.uid.clone()).or_insert_with(|| {
            let lease = serde_json::from_value(resource.status["lease"].clone()).ok();
            Held { hold: Hold::new(spec, lease, now), node: node.clone(), namespace: key.0.clone() }
        });
        if meta.leaves() {
            held.hold.leave(now);
        }
        if let Some(ask) = held.hold.next(now, self.settings.drain) {
            match &daemon {
                Some(daemon) => {
                    let (daemon, namespace, uid) = (daemon.clone(), key.0.clone(), meta.uid.clone());
                    actions.push(Action::Ask(Call { daemon, namespace, uid, ask }));
                }
                None => held.hold.no_daemon(now, &format!("no pod with a daemon is on node {node}")),
            }
        }
        if held.hold.is_gone() {
            return self.let_go(key, &resource, now, actions);
        }
        let Some((reason, message)) = held.hold.ready(now) else { return };
        let url = daemon.as_ref().map(|daemon| daemon.url.as_str());
        let url = url.or(resource.status["url"].as_str());
        let status = status::of_instance(&resource, (reason, &message), held.hold.lease(), url, stamp);
        held.hold.publish();
        self.write_status(now, (Kind::Instance, key), &status, stamp, actions);
    }

    /// Removes the finalizer of an instance, so that the API server deletes it.
    fn let_go(&mut self, key: &Key, resource: &Resource, now: Duration, actions: &mut Vec<Action>) {
        let patch = status::finalizers(&resource.metadata, INSTANCE_FINALIZER, false);
        self.write(now, (Kind::Instance, key), Verb::Patch(patch), actions);
    }

    /// Asks the daemons for their capacity while there are functions, with the token of a namespace
    /// that has one.
    fn ask_capacities(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let mut namespaces: Vec<String> = self.functions.keys().map(|key| key.0.clone()).collect();
        namespaces.dedup();
        if namespaces.is_empty() {
            return;
        }
        let daemons: BTreeSet<Daemon> = self.pods.values().filter(|one| self.is_open(&one.node)).cloned().collect();
        self.known.retain(|node, _| daemons.iter().any(|daemon| daemon.node == *node));
        for daemon in daemons {
            let known = self.known.entry(daemon.node.clone()).or_default();
            // All tokens are tried before there is a pause.
            let is_due = now >= known.ask_at || !known.denials.is_multiple_of(namespaces.len());
            if known.is_asking || !is_due {
                continue;
            }
            (known.is_asking, known.ask_at) = (true, now + CAPACITY_PAUSE);
            let (namespace, uid) = (namespaces[known.namespace % namespaces.len()].clone(), String::new());
            actions.push(Action::Ask(Call { daemon, namespace, uid, ask: Ask::Capacity }));
        }
    }
}
