use super::sample::{Latency, Requests, snapshot};
use super::view::{Effect, View};
use super::*;
use atoll_client::{DeviceStatus, FunctionStatus, StatusReport, UnitStatus, WholeStatus};
use atoll_core::{Nanos, Outcome, TaskId};
use atoll_trace::{EventKind, Record};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

fn status(round: u64) -> StatusReport {
    let function = FunctionStatus {
        device: "host:0".into(),
        tenant: "a".parse().unwrap(),
        function: "f".into(),
        class: Class::RealTime,
        running: 1,
        waiting: 2,
        success: 10 * round,
        failure: round,
        rejected: 2 * round,
        preemptions: 4 * round,
    };
    let whole = WholeStatus {
        real_time_mode: true,
        queue_depths: vec![1, 4],
        queue_capacity: 4,
        real_time_waiting: 0,
        best_effort_waiting: 3,
        preemptions: 4 * round,
        preemption_latency_us: Default::default(),
        launches: 100 * round,
        evicted_launches: 6 * round,
        padded_launches: 0,
        memory_bytes: 1 << 30,
        memory_used_bytes: 1 << 20,
        units: vec![
            UnitStatus { busy_s: 0.5 * round as f64, chunks: 50 * round },
            UnitStatus { busy_s: 2.0 * round as f64, chunks: 0 },
        ],
    };
    StatusReport {
        device: "host:0".into(),
        compute_units: 2,
        policy: "reset".into(),
        uptime_s: 3700.0,
        lost: None,
        whole: Some(whole),
        functions: vec![function],
        devices: vec![],
    }
    .complete()
}

/// A snapshot of two seconds, in which one of two finished requests succeeded.
fn sampled() -> Snapshot {
    let mut requests = Requests::default();
    let record = |at: u64, task: u64, kind: EventKind| Record {
        at: Nanos(at * 1_000_000),
        task: TaskId(task),
        function: 7,
        kind,
    };
    let arrived = EventKind::Arrived { class: Class::RealTime, ready: true };
    let finished = |outcome| EventKind::Finished { outcome, preemptions: 0 };
    for record in [
        record(0, 1, arrived),
        record(100, 2, arrived),
        record(300, 1, finished(Outcome::Complete)),
        record(500, 2, finished(Outcome::Cancelled)),
        record(600, 3, finished(Outcome::Complete)),
    ] {
        requests.take(&record);
    }
    requests.name(7, "a", "f");
    snapshot(&status(1), &status(2), &mut [&mut requests], 2.0, 0)
}

#[test]
fn rates_and_latencies_are_of_the_interval() {
    let snapshot = sampled();
    let row = &snapshot.functions[0];
    assert_eq!((row.requests_per_s, row.failures_per_s, row.preemptions_per_s), (5.0, 1.5, 2.0));
    assert_eq!(row.latency_ms, Some(Latency { mean: 300.0, p50: 300.0, p99: 300.0, max: 300.0 }));
    let whole = snapshot.devices[0].whole.as_ref().unwrap();
    assert_eq!((whole.mode, whole.real_time_share, whole.launches_per_s), ("real-time", 0.25, 50.0));
    assert_eq!(
        whole.units.iter().map(|unit| (unit.used, unit.chunks_per_s)).collect::<Vec<_>>(),
        [(0.25, 25.0), (1.0, 0.0)]
    );
    assert_eq!(
        text(&snapshot),
        "host:0, 2 compute units, policy reset, up for 1 h 1 min\n\
         mode: real-time, real-time for 25 % of the interval\n\
         device queues: 1 of 4, 4 of 4; waiting: 0 real-time, 3 best-effort\n\
         preemptions: 2.0/s, 8 in total\n\
         launches: 50/s, 3.0/s evicted, 0.0/s padded; memory: 1.0 MiB of 1.0 GiB\n\
         compute unit 0: 25 %, 25 chunks/s\n\
         compute unit 1: 100 %, 0 chunks/s\n  \
         tenant  function  class      running  waiting  requests/s  failed/s  mean ms  p50 ms  p99 ms  preempted/s\n  \
         a       f         real-time        1        2         5.0       1.5   300.00  300.00  300.00          2.0\n"
    );
}

/// The lines that a terminal of this size shows.
fn shown(snapshot: &Snapshot, width: u16, height: u16) -> Vec<String> {
    shown_by(&mut View::default(), snapshot, width, height)
}

/// The same in a view that the user chose.
fn shown_by(view: &mut View, snapshot: &Snapshot, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen::draw(frame, snapshot, view)).unwrap();
    let cells = terminal.backend().buffer().content();
    cells
        .chunks(width.into())
        .map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned())
        .collect()
}

#[test]
fn a_terminal_shows_the_whole_snapshot() {
    let lines = shown(&sampled(), 120, 12);
    assert_eq!(lines[0], "host:0, 2 compute units, policy reset, up for 1 h 1 min");
    assert_eq!(lines[1], "mode: real-time, real-time for 25 % of the interval");
    assert!(
        lines[5].starts_with("cu 0   ████")
            && lines[5].contains("···  25 %  cu 1   ██")
            && lines[5].ends_with(" 100 %"),
        "{lines:#?}"
    );
    assert!(lines[7].starts_with("tenant  function  class      running"), "{lines:#?}");
    assert!(lines[8].starts_with("a       f         real-time        1        2         5.0"), "{lines:#?}");
}

/// A snapshot with a second device, which is lost, and a function on it.
fn of_two_devices() -> Snapshot {
    let report = |round| {
        let mut report = status(round);
        report.devices.push(DeviceStatus {
            device: "host:1".into(),
            lost: Some("gone".into()),
            ..report.devices[0].clone()
        });
        report.functions.push(FunctionStatus {
            device: "host:1".into(),
            function: "g".into(),
            ..report.functions[0].clone()
        });
        report
    };
    let (mut first, mut second) = (Requests::default(), Requests::default());
    snapshot(&report(1), &report(2), &mut [&mut first, &mut second], 2.0, 0)
}

#[test]
fn every_device_is_shown_with_its_functions() {
    let snapshot = of_two_devices();
    let text = text(&snapshot);
    assert!(
        text.starts_with("host:0, 2 compute units, policy reset")
            && text.contains("\nhost:1, 2 compute units, policy reset, up for 1 h 1 min, lost: gone\n"),
        "{text}"
    );
    assert!(
        text.contains("  device  tenant  function")
            && text.contains("\n  host:0  a       f ")
            && text.contains("\n  host:1  a       g "),
        "{text}"
    );
    let json = serde_json::to_value(&snapshot).unwrap();
    assert_eq!(
        (&json["device"], &json["devices"][1]["device"], &json["functions"][1]["device"]),
        (&"host:0".into(), &"host:1".into(), &"host:1".into())
    );
    let lines = shown(&snapshot, 140, 20);
    assert!(
        lines[0].starts_with("host:0, ")
            && lines[6].starts_with("host:1, ")
            && lines[13].starts_with("device  tenant  function"),
        "{lines:#?}"
    );
}

#[test]
fn the_screen_fits_any_terminal_and_any_number_of_compute_units() {
    let mut snapshot = sampled();
    let unit = |unit| sample::UnitRow { unit, used: 0.5, chunks_per_s: 1.0 };
    snapshot.devices[0].whole.as_mut().unwrap().units = (0..512).map(unit).collect();
    for (width, height) in [(1, 1), (20, 3), (80, 24), (200, 60), (30, 200)] {
        shown(&snapshot, width, height);
    }
    assert!(shown(&snapshot, 80, 24).iter().any(|line| line.contains("489 more")), "{:#?}", shown(&snapshot, 80, 24));
    snapshot.devices[0].whole = None;
    let lines = shown(&snapshot, 80, 24);
    assert!(
        lines[2].starts_with("tenant  function  class      running  waiting  requests/s  p99 ms  preempted/s"),
        "columns are dropped rather than cut: {lines:#?}"
    );
}

#[test]
fn the_class_is_that_of_the_requests_that_arrived() {
    let mut snapshot = sampled();
    for (share, expected) in [
        (None, "best-effort"),
        (Some(0.0), "best-effort"),
        (Some(1.0), "real-time"),
        (Some(0.6), "60 % real-time"),
        (Some(0.999), "99 % real-time"),
    ] {
        let row = &mut snapshot.functions[0];
        (row.class, row.real_time_share) = (Class::BestEffort, share);
        assert_eq!(cells(row)[3], expected);
    }
    let mut requests = Requests::default();
    for (task, class) in [(1, Class::BestEffort), (2, Class::RealTime), (3, Class::RealTime), (4, Class::RealTime)] {
        let kind = EventKind::Arrived { class, ready: true };
        requests.take(&Record { at: Nanos(task), task: TaskId(task), function: 7, kind });
    }
    requests.name(7, "a", "f");
    let mut next = || snapshot_of(&mut requests).functions[0].real_time_share;
    assert_eq!((next(), next()), (Some(0.75), None), "each interval counts its own requests");
}

fn snapshot_of(requests: &mut Requests) -> Snapshot {
    snapshot(&status(1), &status(2), &mut [requests], 2.0, 0)
}

/// A snapshot with these functions, which have 0, 1, 2 … requests each second.
fn of_functions(names: &[&str]) -> Snapshot {
    let report = |round: u64| {
        let mut report = status(round);
        let function = |(at, name): (usize, &&str)| FunctionStatus {
            function: (*name).into(),
            success: at as u64 * 2 * round,
            ..report.functions[0].clone()
        };
        report.functions = names.iter().enumerate().map(function).collect();
        report.devices[0].whole = None;
        report
    };
    snapshot(&report(1), &report(2), &mut [&mut Requests::default()], 2.0, 0)
}

fn press(view: &mut View, codes: impl IntoIterator<Item = KeyCode>) -> Vec<Effect> {
    codes.into_iter().map(|code| view.press(KeyEvent::new(code, KeyModifiers::NONE))).collect()
}

/// The functions in the table, by the order of its lines.
fn names(view: &mut View, snapshot: &Snapshot, height: u16) -> Vec<String> {
    let lines = shown_by(view, snapshot, 140, height);
    let table = lines.iter().skip_while(|line| !line.starts_with("tenant")).skip(1);
    table.filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned)).collect()
}

#[test]
fn keys_sort_the_functions() {
    let snapshot = of_functions(&["mlp", "gpt", "vad"]);
    let view = &mut View::default();
    assert_eq!(names(view, &snapshot, 20), ["mlp", "gpt", "vad"], "the order of the daemon");
    // The columns from the left: device, tenant, function.
    press(view, [KeyCode::Right; 3]);
    assert_eq!(names(view, &snapshot, 20), ["gpt", "mlp", "vad"]);
    assert!(shown_by(view, &snapshot, 140, 20).iter().any(|line| line.starts_with("tenant  function ▲")));
    press(view, [KeyCode::Char('r')]);
    assert_eq!(names(view, &snapshot, 20), ["vad", "mlp", "gpt"]);
    // Numbers have the largest first.
    press(view, [KeyCode::Char('>'); 4]);
    assert_eq!(names(view, &snapshot, 20), ["vad", "gpt", "mlp"]);
    assert!(shown_by(view, &snapshot, 140, 20).iter().any(|line| line.contains("requests/s ▼")));
    press(view, [KeyCode::Char('<'); 7]);
    assert_eq!(names(view, &snapshot, 20), ["mlp", "gpt", "vad"], "the order of the daemon again");
}

#[test]
fn keys_filter_the_functions() {
    let snapshot = of_functions(&["mlp", "gpt-large", "gpt-small"]);
    let view = &mut View::default();
    press(view, "/GPTq".chars().map(KeyCode::Char));
    assert_eq!(names(view, &snapshot, 20), [""; 0], "q is a letter of the filter");
    press(view, [KeyCode::Backspace]);
    assert_eq!(names(view, &snapshot, 20), ["gpt-large", "gpt-small"]);
    assert!(shown_by(view, &snapshot, 140, 20).contains(&"filter: GPT_ (2 of 3 functions)".to_owned()));
    press(view, [KeyCode::Enter]);
    assert!(shown_by(view, &snapshot, 140, 20).contains(&"filter: GPT (2 of 3 functions)".to_owned()));
    assert_eq!(press(view, [KeyCode::Char('/'), KeyCode::Esc]), [Effect::Draw; 2]);
    assert_eq!(names(view, &snapshot, 20).len(), 3, "Esc clears the filter");
    assert_eq!(press(view, [KeyCode::Char('x'), KeyCode::Esc]), [Effect::Nothing, Effect::End]);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    press(view, [KeyCode::Char('/')]);
    assert_eq!(view.press(interrupt), Effect::End);
}

#[test]
fn keys_scroll_through_functions_that_do_not_fit() {
    let all: Vec<String> = (0..30).map(|number| format!("f{number:02}")).collect();
    let snapshot = of_functions(&all.iter().map(String::as_str).collect::<Vec<_>>());
    let view = &mut View::default();
    // A line for the device, one about the view, and the header leave room for ten.
    let visible = |view: &mut View, codes: &[KeyCode]| {
        press(view, codes.iter().copied());
        let names = names(view, &snapshot, 13);
        (names[0].clone(), names[names.len() - 1].clone())
    };
    let pair = |first: &str, last: &str| (first.to_owned(), last.to_owned());
    assert_eq!(visible(view, &[]), pair("f00", "f09"));
    assert_eq!(visible(view, &[KeyCode::Down, KeyCode::Down, KeyCode::Up]), pair("f01", "f10"));
    assert_eq!(visible(view, &[KeyCode::PageDown]), pair("f11", "f20"));
    assert_eq!(visible(view, &[KeyCode::End]), pair("f20", "f29"));
    assert!(shown_by(view, &snapshot, 140, 13).contains(&"functions 21 to 30 of 30".to_owned()));
    assert_eq!(visible(view, &[KeyCode::Down, KeyCode::PageUp]), pair("f10", "f19"));
    assert_eq!(visible(view, &[KeyCode::Home]), pair("f00", "f09"));
}
