//! Suspension of sessions: which of them leave the device, when, and for whom.

use atoll_core::memory::{
    Action, Event, FunctionId, FunctionSpec, InvocationSpec, Memory, MemoryQuotas, MemorySpec, Place, Refusal,
    SessionId, SessionSpec, StageSpec, TenantBytes,
};
use atoll_core::residency::{RESIDENCY_POLICIES, Residency};
use atoll_core::rng::Rng;
use atoll_core::{Class, DeviceOffset, Nanos, TaskId, Tenant};
use std::collections::{BTreeMap, BTreeSet};

const UNIT: u64 = 1 << 16;

/// Sessions may have three quarters of it.
const DEVICE: u64 = 16 * UNIT;

const IDLE_NS: u64 = 1000;

/// A function of each tenant.
const TENANTS: [&str; 2] = ["a", "b"];

/// A device with sessions, and the actions that were not looked at.
struct World {
    memory: Memory,
    now: u64,
    next: u64,
    actions: Vec<Action>,
    /// Whether host memory is refused, and whether clients hold their sessions.
    refuses: bool,
    holds: bool,
    leaving: Vec<SessionId>,
    /// Invocations that may be prepared.
    ready: BTreeSet<TaskId>,
}

impl World {
    fn new(idle_ns: Option<u64>, quotas: MemoryQuotas) -> World {
        let spec = MemorySpec {
            memory_bytes: DEVICE,
            constants_base: DeviceOffset(1 << 40),
            constants_bytes: DEVICE,
            constants_granule: 256,
            limit_bytes: None,
            overcommit: 1.0,
        };
        let residency = Residency::new((RESIDENCY_POLICIES[0].make)());
        let mut memory = Memory::new(&spec, residency, quotas).with_suspension(idle_ns, DeviceOffset(2 * UNIT));
        for (at, tenant) in TENANTS.into_iter().enumerate() {
            let (function, tenant) = (FunctionId(at as u64), name(tenant));
            let spec = FunctionSpec { function, tenant, class: Class::BestEffort, constants: vec![] };
            memory.register(spec).expect("room");
        }
        let (actions, leaving, ready) = (Vec::new(), Vec::new(), BTreeSet::new());
        World { memory, now: 1, next: 100, actions, refuses: false, holds: false, leaving, ready }
    }

    fn unlimited() -> World {
        World::new(Some(IDLE_NS), MemoryQuotas::default())
    }

    fn send(&mut self, event: Event) {
        self.memory.handle(Nanos(self.now), event);
        while let Some(action) = self.memory.next_action() {
            match action {
                Action::Suspend { session, .. } if self.refuses || self.holds => {
                    let event = Event::StaysOnDevice { session, is_held: self.holds };
                    self.memory.handle(Nanos(self.now), event);
                }
                Action::Suspend { session, .. } => self.leaving.push(session),
                Action::Admitted { task, ready: true } | Action::Ready { task } => drop(self.ready.insert(task)),
                Action::Unready { task } => drop(self.ready.remove(&task)),
                _ => {}
            }
            self.actions.push(action);
        }
    }

    /// An invocation of a tenant's function, of a session if one is given: its number, units and
    /// place.
    fn spec(&mut self, tenant: usize, units: u64, session: Option<(u64, u64, Option<u64>)>) -> InvocationSpec {
        self.next += 1;
        let session = session.map(|(number, units, at)| SessionSpec {
            session: SessionId(number),
            bytes: units * UNIT,
            idle_ns: u64::MAX,
            may_suspend: true,
            at: at.map(|at| DeviceOffset(at * UNIT)),
        });
        let stage =
            StageSpec { function: FunctionId(tenant as u64), shape: Box::new([units as i64]), bytes: units * UNIT };
        InvocationSpec {
            task: TaskId(self.next),
            class: Class::BestEffort,
            tenant: name(TENANTS[tenant]),
            stages: vec![stage],
            session,
        }
    }

    /// An invocation arrives. Returns it, or why it is refused.
    fn arrive(&mut self, spec: InvocationSpec) -> Result<TaskId, Refusal> {
        let task = spec.task;
        self.memory.check(&spec)?;
        self.send(Event::Arrived(spec));
        Ok(task)
    }

    fn flush(&mut self, session: (u64, u64, Option<u64>)) -> Result<TaskId, Refusal> {
        let spec = self.spec(0, 1, Some(session));
        self.arrive(spec)
    }

    /// Prepares an invocation if it is ready. Returns whether it is prepared.
    fn prepare(&mut self, task: TaskId) -> bool {
        let from = self.actions.len();
        self.send(Event::Prepare { task });
        let begins = self.actions[from..].contains(&Action::Begin { task });
        if begins {
            self.send(Event::Prepared { task });
        }
        begins
    }

    fn end(&mut self, task: TaskId) {
        self.send(Event::Ended { task });
        self.send(Event::Resume);
    }

    /// A flush that runs at once.
    fn run(&mut self, session: (u64, u64, Option<u64>)) {
        let task = self.flush(session).expect("it fits");
        assert!(self.prepare(task), "{session:?} has no memory: {:?}", self.actions);
        self.end(task);
    }

    /// The copies that began are done. Returns the sessions.
    fn left(&mut self) -> Vec<u64> {
        let left = std::mem::take(&mut self.leaving);
        for session in &left {
            self.send(Event::Suspended { session: *session });
            self.send(Event::Resume);
        }
        left.into_iter().map(|session| session.0).collect()
    }

    /// Time passes.
    fn pass(&mut self, ns: u64) {
        self.now += ns;
        if self.memory.next_wakeup().is_some_and(|at| at.0 <= self.now) {
            self.send(Event::Tick);
        }
    }

    fn place(&self, session: u64) -> Option<Place> {
        self.memory.session_place(SessionId(session))
    }
}

fn name(tenant: &str) -> Tenant {
    tenant.parse().expect("a name")
}

#[test]
fn the_session_that_was_idle_for_longest_leaves_for_one_that_does_not_fit() {
    let mut world = World::unlimited();
    for session in [1, 2, 3] {
        world.run((session, 4, None));
        world.pass(10);
    }
    // Session 1 was used last.
    world.run((1, 4, None));
    world.pass(IDLE_NS);
    let task = world.flush((4, 4, None)).expect("it waits");
    assert!(!world.prepare(task));
    assert_eq!(world.left(), [2]);
    assert!(world.ready.contains(&task) && world.prepare(task));
    assert_eq!([1, 2, 3, 4].map(|session| world.place(session).is_some()), [true, false, true, true]);
    world.end(task);
    assert_eq!(world.memory.sessions(), (3, 12 * UNIT));
    assert!(world.leaving.is_empty(), "no more than needed");
}

#[test]
fn a_session_stays_until_it_was_idle_for_the_set_time_or_the_other_has_waited_for_it() {
    let mut world = World::unlimited();
    world.run((1, 12, None));
    world.pass(IDLE_NS / 2);
    let task = world.flush((2, 4, None)).expect("it waits");
    assert!(!world.prepare(task) && world.leaving.is_empty());
    world.pass(IDLE_NS / 2 - 1);
    assert!(world.leaving.is_empty());
    world.pass(1);
    assert_eq!(world.left(), [1]);
    assert!(world.prepare(task));
    world.end(task);
    // Its client uses the first session again and again: the other one waits for the set time only.
    let again = world.flush((1, 12, None)).expect("it waits");
    assert!(!world.prepare(again));
    for _ in 0..20 {
        world.pass(IDLE_NS / 10);
        if !world.leaving.is_empty() {
            break;
        }
        world.run((2, 4, None));
    }
    assert_eq!(world.left(), [2]);
    assert!(world.prepare(again));
}

#[test]
fn a_session_with_a_running_flush_does_not_leave() {
    let mut world = World::unlimited();
    world.run((1, 6, None));
    let running = world.flush((2, 6, None)).expect("it fits");
    assert!(world.prepare(running));
    world.pass(10 * IDLE_NS);
    // Session 1 is enough for this one.
    let task = world.flush((3, 6, None)).expect("it waits");
    assert!(!world.prepare(task));
    assert_eq!(world.left(), [1]);
    assert!(world.prepare(task));
    // Nothing is idle now, so this one waits for the end of a flush.
    let last = world.flush((4, 6, None)).expect("it waits");
    assert!(!world.prepare(last));
    world.pass(10 * IDLE_NS);
    assert!(world.leaving.is_empty());
    world.end(running);
    assert_eq!(world.left(), [2]);
    assert!(world.prepare(last));
}

#[test]
fn functions_get_the_memory_of_idle_sessions_as_well() {
    let mut world = World::unlimited();
    world.run((1, 6, None));
    world.run((2, 6, None));
    world.pass(IDLE_NS);
    let spec = world.spec(1, 8, None);
    let task = world.arrive(spec).expect("it waits");
    assert!(!world.prepare(task));
    assert_eq!(world.left(), [1]);
    assert!(world.prepare(task));
    let spec = world.spec(1, 17, None);
    assert!(matches!(world.arrive(spec), Err(Refusal::OutOfMemory { .. })), "larger than the device");
    // What fits beside the sessions suspends none, even if it has to wait.
    let spec = world.spec(1, 8, None);
    let waits = world.arrive(spec).expect("it waits");
    assert!(!world.prepare(waits));
    world.pass(10 * IDLE_NS);
    assert!(world.leaving.is_empty());
    world.end(task);
    assert!(world.prepare(waits));
}

#[test]
fn a_session_returns_to_its_place_and_those_in_the_way_leave_first() {
    let mut world = World::unlimited();
    world.run((1, 4, None));
    let place = world.place(1).expect("it has memory");
    assert_eq!(place.at, DeviceOffset(2 * UNIT), "where this device begins to look");
    world.send(Event::SuspendSession { session: SessionId(1) });
    assert_eq!(world.left(), [1]);
    // A new session avoids the place.
    world.run((2, 4, None));
    assert!(world.place(2).is_some_and(|other| other.at.0 >= place.at.0 + place.bytes));
    // One that needs the same place, since it was there on another device, does not.
    world.pass(IDLE_NS);
    world.run((3, 4, Some(1)));
    world.pass(IDLE_NS);
    let task = world.flush((1, 4, Some(2))).expect("it waits");
    assert!(!world.prepare(task));
    assert_eq!(world.left(), [3], "it was used later than session 2");
    assert!(world.prepare(task) && world.place(1) == Some(place));
    world.end(task);
    world.send(Event::SessionClosed { session: SessionId(3) });
    assert_eq!(world.memory.sessions(), (2, 8 * UNIT));
}

#[test]
fn sessions_do_not_exceed_their_share_until_one_has_left() {
    let mut world = World::unlimited();
    world.run((1, 12, None));
    let task = world.flush((2, 1, None)).expect("it waits");
    assert!(!world.prepare(task), "the device has room, the share of sessions has none");
    world.pass(IDLE_NS);
    assert_eq!(world.left(), [1]);
    assert!(world.prepare(task));
    assert_eq!(world.memory.sessions(), (1, UNIT));
}

#[test]
fn a_session_in_the_way_leaves_and_others_stay() {
    let mut world = World::unlimited();
    world.run((1, 4, None));
    world.send(Event::SuspendSession { session: SessionId(1) });
    assert_eq!(world.left(), [1]);
    world.run((2, 2, None));
    let running = world.flush((3, 3, Some(3))).expect("it fits");
    assert!(world.prepare(running));
    world.pass(IDLE_NS);
    let task = world.flush((1, 4, Some(2))).expect("it waits");
    assert!(!world.prepare(task));
    world.pass(10 * IDLE_NS);
    assert!(world.leaving.is_empty(), "session 2 was idle for longest, and is not in the way");
    // Also while something else runs.
    let other = world.spec(1, 1, None);
    let other = world.arrive(other).expect("it fits");
    assert!(world.prepare(other));
    world.end(running);
    assert_eq!(world.left(), [3]);
    assert!(world.prepare(task));
    assert_eq!(world.place(1).map(|place| place.at), Some(DeviceOffset(2 * UNIT)));
}

#[test]
fn no_session_leaves_for_a_place_that_cannot_be_had() {
    let mut world = World::unlimited();
    let mut spec = world.spec(0, 1, Some((1, 2, Some(2))));
    spec.session.as_mut().expect("it has one").may_suspend = false;
    let task = world.arrive(spec).expect("it fits");
    assert!(world.prepare(task));
    world.end(task);
    world.run((2, 2, None));
    world.pass(10 * IDLE_NS);
    // A place that stays taken, and one that the device does not have.
    for (session, at) in [(3, 3), (4, 14)] {
        let task = world.flush((session, 4, Some(at))).expect("it waits");
        assert!(!world.prepare(task) && world.leaving.is_empty());
        let is_refused = |action: &Action| matches!(action, Action::Refuse { task: refused, .. } if *refused == task);
        assert!(world.actions.iter().any(is_refused), "{:?}", world.actions);
        world.end(task);
    }
    assert!(world.place(2).is_some());
}

#[test]
fn memory_that_cannot_be_cleared_after_a_session_left_is_not_used_again() {
    let mut world = World::unlimited();
    world.run((1, 4, None));
    let place = world.place(1).expect("it has memory");
    world.send(Event::SuspendSession { session: SessionId(1) });
    assert_eq!(std::mem::take(&mut world.leaving), [SessionId(1)]);
    world.send(Event::Suspended { session: SessionId(1) });
    world.send(Event::ClearFailed { place });
    world.send(Event::Resume);
    assert_eq!(world.memory.withheld_bytes(), 4 * UNIT);
    world.run((2, 4, None));
    assert!(world.place(2).is_some_and(|other| other.at.0 >= place.at.0 + place.bytes));
}

#[test]
fn a_session_leaves_on_request_once_its_flush_has_ended() {
    let mut world = World::new(None, MemoryQuotas::default());
    let first = world.flush((1, 4, None)).expect("it fits");
    world.send(Event::SuspendSession { session: SessionId(1) });
    assert!(world.prepare(first) && world.leaving.is_empty(), "it had no memory");
    world.send(Event::SuspendSession { session: SessionId(1) });
    assert!(world.leaving.is_empty());
    world.end(first);
    assert_eq!(world.leaving, [SessionId(1)]);
    // A flush that arrives meanwhile waits for the copy, and then for memory.
    let next = world.flush((1, 4, Some(2))).expect("it waits");
    assert!(!world.prepare(next));
    assert_eq!(world.left(), [1]);
    assert!(world.ready.contains(&next) && world.prepare(next));
    world.end(next);
    // One that closes meanwhile frees its memory at once.
    world.send(Event::SuspendSession { session: SessionId(1) });
    world.send(Event::SessionClosed { session: SessionId(1) });
    assert!(matches!(world.actions.last(), Some(Action::FreeState { session: SessionId(1), .. })));
    world.left();
    assert_eq!(world.memory.sessions(), (0, 0));
    world.send(Event::SuspendSession { session: SessionId(1) });
    assert!(world.leaving.is_empty());
}

#[test]
fn without_suspension_or_host_memory_what_does_not_fit_is_refused() {
    let mut world = World::new(None, MemoryQuotas::default());
    world.run((1, 12, None));
    world.pass(10 * IDLE_NS);
    assert!(matches!(world.flush((2, 4, None)), Err(Refusal::OutOfMemory { .. })));
    let mut world = World::unlimited();
    world.run((1, 12, None));
    world.pass(10 * IDLE_NS);
    world.refuses = true;
    let task = world.flush((2, 4, None)).expect("it waits");
    assert!(!world.prepare(task));
    let is_refused = |action: &Action| matches!(action, Action::Refuse { task: refused, .. } if *refused == task);
    assert!(world.actions.iter().any(is_refused), "{:?}", world.actions);
    world.end(task);
    assert!(world.flush((3, 4, None)).is_err(), "not tried again at once");
    world.refuses = false;
    world.pass(2_000_000_000);
    let task = world.flush((4, 4, None)).expect("it waits");
    assert!(!world.prepare(task));
    assert_eq!(world.left(), [1]);
    assert!(world.prepare(task));
}

#[test]
fn a_session_that_its_client_holds_leaves_when_it_is_released() {
    let mut world = World::unlimited();
    world.run((1, 12, None));
    world.pass(IDLE_NS);
    world.holds = true;
    let task = world.flush((2, 4, None)).expect("it waits");
    assert!(!world.prepare(task) && world.leaving.is_empty());
    world.run((1, 12, None));
    assert!(world.leaving.is_empty(), "held until it is released");
    world.holds = false;
    world.send(Event::Released { session: SessionId(1) });
    world.pass(IDLE_NS);
    assert_eq!(world.left(), [1]);
    assert!(world.prepare(task));
}

#[test]
fn a_tenant_at_its_quota_gets_the_memory_of_its_own_idle_sessions() {
    let quota = TenantBytes { all: 6 * UNIT, best_effort: 6 * UNIT };
    let quotas = MemoryQuotas { tenants: [(name("a"), quota)].into(), ..MemoryQuotas::default() };
    let mut world = World::new(Some(IDLE_NS), quotas);
    let other = world.spec(1, 1, Some((9, 4, None)));
    let other = world.arrive(other).expect("it fits");
    assert!(world.prepare(other));
    world.end(other);
    world.pass(10);
    world.run((1, 4, None));
    world.pass(IDLE_NS);
    let task = world.flush((2, 4, None)).expect("it waits");
    assert!(!world.prepare(task));
    assert_eq!(world.left(), [1], "not the other tenant's, which was idle for longer");
    assert!(world.prepare(task));
    world.end(task);
    assert!(matches!(world.flush((3, 7, None)), Err(Refusal::OverQuota { .. })), "larger than the quota");
}

/// Sessions and functions at random: bytes add up, no flush waits forever, no prepared flush is without
/// its session's memory, and places stay the same.
#[test]
fn random_flushes_are_all_served() {
    for seed in 0..100 {
        let (mut rng, mut world) = (Rng::new(seed), World::unlimited());
        let sizes: Vec<u64> = (0..6).map(|_| 1 + rng.below(6)).collect();
        let mut places: BTreeMap<u64, Place> = BTreeMap::new();
        let (mut waiting, mut running): (BTreeMap<TaskId, u64>, BTreeMap<TaskId, u64>) = Default::default();
        for step in 0..3000 {
            world.pass(1 + rng.below(IDLE_NS / 4));
            match rng.below(4) {
                0 if step < 1000 => {
                    let session = rng.below(6);
                    let at = places.get(&session).map(|place| place.at.0 / UNIT);
                    if !waiting.values().chain(running.values()).any(|busy| *busy == session) {
                        let task = world.flush((session, sizes[session as usize], at)).expect("it fits alone");
                        waiting.insert(task, session);
                    }
                }
                1 => drop(world.left()),
                2 => {
                    if let Some((task, _)) = running.pop_first() {
                        world.end(task);
                    }
                }
                _ if running.len() < 2 => {
                    let first = waiting.keys().copied().find(|task| world.ready.contains(task));
                    if let Some(task) = first.filter(|task| world.prepare(*task)) {
                        let session = waiting.remove(&task).expect("it waits");
                        running.insert(task, session);
                        let place = world.place(session).expect("a prepared flush has its session's memory");
                        assert_eq!(*places.entry(session).or_insert(place), place, "seed {seed}: {session} moved");
                    }
                }
                _ => {}
            }
            let is_refusal = |action: &Action| matches!(action, Action::Refuse { .. });
            assert!(!world.actions.drain(..).any(|action| is_refusal(&action)), "seed {seed}");
            let all: Vec<Place> = (0..6).filter_map(|session| world.place(session)).collect();
            let bytes: u64 = all.iter().map(|place| place.bytes).sum();
            assert!(world.memory.sessions().1 == bytes && bytes <= DEVICE / 4 * 3, "seed {seed}: {bytes}");
            let ends = |place: &Place| place.at.0 + place.bytes;
            let is_apart = |one: &Place, other: &Place| ends(one) <= other.at.0 || ends(other) <= one.at.0;
            for (at, one) in all.iter().enumerate() {
                assert!(all[at + 1..].iter().all(|other| is_apart(one, other)), "seed {seed}: {all:?}");
            }
            assert!(running.values().all(|session| world.place(*session).is_some()), "seed {seed}");
        }
        assert!(waiting.is_empty() && running.is_empty(), "seed {seed}: {waiting:?} {running:?}");
    }
}
