//! Dynamic batching with simulated clients and devices, in virtual time.

mod world;

use atoll_core::batching::{Action, BatchSpec, Batching, Event, Group, Request};
use atoll_core::memory::FunctionId;
use atoll_core::rng::Rng;
use atoll_core::{Class, Nanos, TaskId};
use std::collections::BTreeSet;

const MS: u64 = 1_000_000;

fn spec(max_rows: u32) -> BatchSpec {
    BatchSpec { max_rows, max_bytes: u64::MAX, preferred: Vec::new(), max_delay_ns: None, real_time_waits: false }
}

fn request(task: u64, rows: u64) -> Request {
    Request {
        task: TaskId(task),
        function: FunctionId(0),
        class: Class::BestEffort,
        group: Group::default(),
        rows,
        bytes: rows,
        deadline: None,
    }
}

/// The batching decisions of one function, driven event by event.
struct One {
    batching: Batching,
    next: u64,
}

impl One {
    fn new(spec: BatchSpec) -> One {
        let mut batching = Batching::default();
        batching.handle(Nanos(0), Event::Loaded { function: FunctionId(0), spec }, &mut Vec::new());
        One { batching, next: 0 }
    }

    fn send(&mut self, at: u64, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.batching.handle(Nanos(at), event, &mut actions);
        actions
    }

    /// A request arrives for each entry of `rows`. Returns the rows of the batches that were
    /// closed.
    fn arrive(&mut self, at: u64, rows: &[u64]) -> Vec<u64> {
        let mut closed = Vec::new();
        for &rows in rows {
            self.next += 1;
            let actions = self.send(at, Event::Arrived(request(self.next, rows)));
            closed.extend(actions.iter().map(rows_of));
        }
        closed
    }

    fn end(&mut self, at: u64, batch: u64, ran_ns: u64) -> Vec<u64> {
        self.send(at, Event::Ended { batch: TaskId(batch), ran_ns: Some(ran_ns) }).iter().map(rows_of).collect()
    }

    fn tick(&mut self, at: u64) -> Vec<u64> {
        self.send(at, Event::Tick).iter().map(rows_of).collect()
    }

    fn wakeup(&self) -> Option<u64> {
        self.batching.next_wakeup().map(|at| at.0)
    }
}

fn rows_of(action: &Action) -> u64 {
    match action {
        Action::Close { rows, .. } => *rows,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_free_function_delays_no_request() {
    let mut one = One::new(spec(32));
    for turn in 0..20 {
        assert_eq!(one.arrive(turn * 10 * MS, &[1]), [1]);
        assert_eq!(one.wakeup(), None);
        assert_eq!(one.end(turn * 10 * MS + MS, turn + 1, MS), [0; 0]);
    }
}

#[test]
fn requests_that_arrive_while_it_runs_form_the_next_batch() {
    let mut one = One::new(spec(8));
    assert_eq!(one.arrive(0, &[1, 1, 2, 1]), [1]);
    assert_eq!(one.wakeup(), None, "it waits for the batch, not for a time");
    // The next batch waits for one more row, that of the answered client, at most for the time of a
    // run.
    assert_eq!(one.end(5 * MS, 1, 5 * MS), [0; 0]);
    assert_eq!(one.wakeup(), Some(10 * MS));
    assert_eq!(one.arrive(6 * MS, &[1]), [5]);
    assert_eq!(one.wakeup(), None);
}

#[test]
fn a_window_ends_although_clients_stay_away_and_is_then_skipped() {
    let mut one = One::new(spec(8));
    one.arrive(0, &[1, 1, 1]);
    assert_eq!(one.end(5 * MS, 1, 5 * MS), [0; 0]);
    assert_eq!(one.tick(one.wakeup().unwrap()), [2]);
    // Two requests arrive while the batch runs. The last window failed, so the next one is skipped.
    assert_eq!(one.arrive(11 * MS, &[1, 1]), [0; 0]);
    assert_eq!(one.end(15 * MS, 2, 5 * MS), [2]);
}

#[test]
fn one_full_batch_is_closed_early_and_no_second_one() {
    let mut one = One::new(spec(4));
    assert_eq!(one.arrive(0, &[1, 1, 1, 1]), [1]);
    assert_eq!(one.arrive(MS, &[1]), [4]);
    assert_eq!(one.arrive(MS, &[1, 1, 1, 1, 1]), [0; 0]);
    assert_eq!(one.end(2 * MS, 1, MS), [4], "the next full batch");
    // A request that does not fit makes a batch full as well.
    let mut one = One::new(spec(4));
    assert_eq!(one.arrive(0, &[1, 3, 2]), [1, 3]);
}

#[test]
fn requests_with_too_many_rows_or_bytes_run_alone() {
    let mut one = One::new(BatchSpec { max_bytes: 5, ..spec(8) });
    assert_eq!(one.arrive(0, &[9]), [9]);
    assert_eq!(one.arrive(0, &[3, 2, 4]), [5], "full by bytes, which are as many as rows here");
    assert_eq!(one.end(MS, 1, MS), [0; 0]);
}

#[test]
fn a_fixed_delay_holds_on_a_free_function() {
    let mut one = One::new(BatchSpec { max_delay_ns: Some(3 * MS), ..spec(4) });
    assert_eq!(one.arrive(0, &[1, 1]), [0; 0]);
    assert_eq!(one.wakeup(), Some(3 * MS));
    assert_eq!(one.tick(3 * MS), [2]);
    assert_eq!(one.arrive(4 * MS, &[1]), [0; 0]);
    assert_eq!(one.end(9 * MS, 1, MS), [1], "its delay passed while the other batch ran");
    assert_eq!(one.end(10 * MS, 3, MS), [0; 0]);
    assert_eq!(one.arrive(11 * MS, &[1, 1, 1, 1]), [4], "nothing waits for more than fits");
    let mut none = One::new(BatchSpec { max_delay_ns: Some(0), ..spec(4) });
    assert_eq!(none.arrive(0, &[1]), [1]);
}

#[test]
fn preferred_sizes_are_formed_first() {
    let mut one = One::new(BatchSpec { max_delay_ns: Some(3 * MS), preferred: vec![4, 2, 900], ..spec(8) });
    assert_eq!(one.arrive(0, &[1]), [0; 0]);
    assert_eq!(one.arrive(1, &[1]), [2], "a preferred size does not wait");
    assert_eq!(one.arrive(2, &[1, 1, 1, 1, 1]), [4], "the largest preferred size is a full batch");
    assert_eq!(one.end(MS, 1, MS), [0; 0]);
    assert_eq!(one.end(2 * MS, 3, MS), [0; 0]);
    assert_eq!(one.tick(one.wakeup().unwrap()), [1], "other sizes go when their delay is over");
}

#[test]
fn a_deadline_shortens_the_delay_and_expires() {
    let mut one = One::new(BatchSpec { max_delay_ns: Some(50 * MS), ..spec(4) });
    one.arrive(0, &[1]);
    assert_eq!(one.tick(50 * MS), [1]);
    assert_eq!(one.end(58 * MS, 1, 8 * MS), [0; 0]);
    let urgent = Request { deadline: Some(Nanos(80 * MS)), ..request(7, 1) };
    assert_eq!(one.send(60 * MS, Event::Arrived(urgent)), []);
    assert_eq!(one.wakeup(), Some(70 * MS), "8 ms to run, and a quarter of that as a margin");
    assert_eq!(one.tick(70 * MS), [1]);
    // A request can expire before it is in a batch, and while its batch runs.
    for (task, deadline) in [(8, 75), (9, 90), (10, 200)] {
        one.send(71 * MS, Event::Arrived(Request { deadline: Some(Nanos(deadline * MS)), ..request(task, 1) }));
    }
    assert_eq!(one.wakeup(), Some(75 * MS));
    assert_eq!(one.send(75 * MS, Event::Tick), [Action::Expire(TaskId(8))]);
    let actions = one.send(81 * MS, Event::Ended { batch: TaskId(7), ran_ns: Some(8 * MS) });
    assert_eq!(actions, [Action::Close { requests: vec![TaskId(9), TaskId(10)], rows: 2 }]);
    assert_eq!(one.send(90 * MS, Event::Tick), [Action::Expire(TaskId(9))]);
    assert_eq!(one.send(91 * MS, Event::Left(TaskId(10))), [Action::Cancel(TaskId(9))]);
    assert_eq!(one.send(92 * MS, Event::Ended { batch: TaskId(9), ran_ns: None }), []);
    assert!(!one.batching.knows(TaskId(9)) && !one.batching.knows(TaskId(10)) && one.wakeup().is_none());
}

/// A real-time request of one row.
fn urgent(task: u64, deadline: Option<u64>) -> Event {
    Event::Arrived(Request { class: Class::RealTime, deadline: deadline.map(Nanos), ..request(task, 1) })
}

fn close(tasks: &[u64]) -> Vec<Action> {
    let requests: Vec<TaskId> = tasks.iter().copied().map(TaskId).collect();
    vec![Action::Close { rows: tasks.len() as u64, requests }]
}

#[test]
fn real_time_requests_wait_only_within_their_deadlines() {
    let mut one = One::new(spec(4));
    // Nothing waits while the run time is unknown.
    assert_eq!(one.send(0, urgent(1, Some(900 * MS))), close(&[1]));
    assert_eq!(one.send(0, urgent(2, Some(900 * MS))), close(&[2]));
    for task in [1, 2] {
        one.send(4 * MS, Event::Ended { batch: TaskId(task), ran_ns: Some(4 * MS) });
    }
    // Nor does a request without a deadline, however many run.
    for task in 3..6 {
        assert_eq!(one.send(9 * MS, urgent(task, None)), close(&[task]));
    }
    // A batch may run for 4 ms more, and 8 ms are for the request itself.
    assert_eq!(one.send(10 * MS, urgent(6, Some(22 * MS))), close(&[6]), "it cannot wait");
    assert_eq!(one.send(10 * MS, urgent(7, Some(25 * MS))), []);
    assert_eq!(one.wakeup(), Some(13 * MS));
    assert_eq!(one.send(11 * MS, urgent(8, Some(90 * MS))), [], "the first request says how long");
    assert_eq!(one.send(13 * MS, Event::Tick), close(&[7, 8]));
    // A full batch does not wait.
    let actions: Vec<Action> = (10..14).flat_map(|task| one.send(14 * MS, urgent(task, Some(900 * MS)))).collect();
    assert_eq!(actions, close(&[10, 11, 12, 13]));
}

#[test]
fn real_time_requests_with_time_form_the_next_batch() {
    let mut one = One::new(spec(8));
    one.send(0, urgent(1, None));
    one.send(4 * MS, Event::Ended { batch: TaskId(1), ran_ns: Some(4 * MS) });
    assert_eq!(one.send(20 * MS, urgent(2, None)), close(&[2]));
    for task in [3, 4] {
        assert_eq!(one.send(21 * MS, urgent(task, Some(100 * MS))), []);
    }
    // The window after the batch is open for at most 4 ms.
    assert_eq!(one.send(24 * MS, Event::Ended { batch: TaskId(2), ran_ns: Some(4 * MS) }), []);
    assert_eq!(one.wakeup(), Some(28 * MS));
    assert_eq!(one.send(28 * MS, Event::Tick), close(&[3, 4]));
}

#[test]
fn classes_priorities_and_shapes_do_not_mix() {
    let mut one = One::new(spec(8));
    assert_eq!(one.arrive(0, &[1]), [1]);
    let with =
        |task, priority, size: i64| Request { group: Group { priority, shape: [size].into() }, ..request(task, 1) };
    for (task, priority, size) in [(10, 1, 7), (11, 0, 8), (12, 0, 7), (13, 1, 7), (14, 0, 8)] {
        assert_eq!(one.send(0, Event::Arrived(with(task, priority, size))), []);
    }
    let real_time = Request { class: Class::RealTime, ..request(20, 1) };
    assert_eq!(one.send(0, Event::Arrived(real_time)), [Action::Close { requests: vec![TaskId(20)], rows: 1 }]);
    let mut order = Vec::new();
    let mut running = TaskId(1);
    for turn in 1..=3 {
        let actions = one.send(turn * MS, Event::Ended { batch: running, ran_ns: Some(MS) });
        let [Action::Close { requests, .. }] = actions.as_slice() else { panic!("{actions:?}") };
        running = requests[0];
        order.push(requests.iter().map(|task| task.0).collect::<Vec<_>>());
    }
    assert_eq!(order, [vec![11, 14], vec![12], vec![10, 13]]);
}

/// A device that runs batches of a function one after the other, and clients that wait for each
/// answer.
struct Closed {
    fixed_ns: u64,
    row_ns: u64,
    clients: u64,
    /// Time from an answer to the next request of its client, at most.
    think_ns: u64,
}

/// Mean rows of a batch, and requests per second.
fn run_closed(closed: &Closed, max_rows: u32, seed: u64) -> (f64, f64) {
    let mut one = One::new(spec(max_rows));
    let mut rng = Rng::new(seed);
    // Times at which clients send.
    let mut sends: BTreeSet<(u64, u64)> = (0..closed.clients).map(|client| (rng.below(MS), client)).collect();
    let mut queue: Vec<(TaskId, Vec<TaskId>)> = Vec::new();
    let (mut ends_at, mut now) = (None::<(u64, u64)>, 0);
    let (mut batches, mut answered) = (0, 0);
    while answered < 20_000 {
        let send = sends.first().map(|&(at, _)| at);
        let at =
            [send, ends_at.map(|(at, _)| at), one.wakeup()].into_iter().flatten().min().expect("something happens");
        now = at.max(now);
        let actions = if ends_at.is_some_and(|(end, _)| end <= now) {
            let (_, ran) = ends_at.take().unwrap();
            let (batch, requests) = queue.remove(0);
            batches += 1;
            answered += requests.len();
            sends.extend(requests.iter().map(|task| (now + rng.below(closed.think_ns) + 1, task.0 % closed.clients)));
            one.send(now, Event::Ended { batch, ran_ns: Some(ran) })
        } else if send.is_some_and(|at| at <= now) {
            let (_, client) = sends.pop_first().unwrap();
            one.next += 1;
            one.send(now, Event::Arrived(request(one.next * closed.clients + client, 1)))
        } else {
            one.send(now, Event::Tick)
        };
        for action in actions {
            let Action::Close { requests, .. } = action else { panic!("{action:?}") };
            queue.push((requests[0], requests));
        }
        if ends_at.is_none()
            && let Some((_, requests)) = queue.first()
        {
            let ns = closed.fixed_ns + closed.row_ns * requests.len() as u64;
            ends_at = Some((now + ns, ns));
        }
    }
    (answered as f64 / batches as f64, answered as f64 / (now as f64 / 1e9))
}

#[test]
fn clients_that_wait_for_answers_are_gathered_if_that_pays() {
    for seed in 0..5 {
        // A run takes the same time for any number of rows, so nearly all clients share each run.
        let (rows, per_s) =
            run_closed(&Closed { fixed_ns: 5 * MS, row_ns: MS / 10, clients: 32, think_ns: MS }, 32, seed);
        assert!(rows > 28.0 && per_s > 32.0 / 0.0105, "seed {seed}: {rows} rows, {per_s} per second");
        // One client is as fast as without batching.
        let (rows, per_s) = run_closed(&Closed { fixed_ns: 5 * MS, row_ns: 0, clients: 1, think_ns: 2 }, 32, seed);
        assert!(rows == 1.0 && per_s > 199.0, "seed {seed}: {rows} rows, {per_s} per second");
        // The time of a run is proportional to its rows: merging saves nothing, so no request
        // waits.
        let (_, per_s) = run_closed(&Closed { fixed_ns: 0, row_ns: 10 * MS, clients: 8, think_ns: MS }, 8, seed);
        assert!(per_s > 98.0, "seed {seed}: {per_s} per second");
        // There are more clients than rows of a batch, so batches are full.
        let (rows, _) = run_closed(&Closed { fixed_ns: 5 * MS, row_ns: MS / 10, clients: 64, think_ns: MS }, 16, seed);
        assert!(rows > 15.0, "seed {seed}: {rows} rows");
    }
}
