//! Probes in a child process: a probe that hangs is killed, and one that breaks its context affects
//! only its own process.

use crate::report::Row;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Longest time that such a probe may take.
const CHILD_TIME_MAX: Duration = Duration::from_secs(20);
/// Longest wait for a killed child.
const END_TIME_MAX: Duration = Duration::from_secs(5);
/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Limit of the rows to read; a probe writes a few kilobytes.
const ROWS_BYTES_MAX: u64 = 1 << 20;

/// How a child ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Ended {
    /// It exited successfully.
    Done,
    /// It hung and was killed.
    Stopped,
    /// It failed; the text is its exit status.
    Failed(String),
}

/// Runs this program again for one probe, and reads its rows as lines of JSON.
pub(crate) fn run(probe: &str, device_index: u32) -> io::Result<(Vec<Row>, Ended)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--child", probe, "--device", &device_index.to_string()]);
    collect(command, CHILD_TIME_MAX)
}

fn collect(mut command: Command, time_max: Duration) -> io::Result<(Vec<Row>, Ended)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let (sender, lines) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || send_lines(output, &sender));
    }
    let ended = wait(&mut child, time_max)?;
    let mut rows = Vec::new();
    while let Ok(line) = lines.recv_timeout(END_TIME_MAX) {
        rows.extend(serde_json::from_str::<Row>(&line).ok());
    }
    Ok((rows, ended))
}

/// Forwards lines until the child closes its output.
fn send_lines(output: ChildStdout, sender: &mpsc::Sender<String>) {
    let lines = BufReader::new(output.take(ROWS_BYTES_MAX)).lines();
    // Ignores read errors and a closed channel: both mean that no further rows are needed.
    _ = lines.map_while(Result::ok).try_for_each(|line| sender.send(line));
}

/// Waits for the child, and kills it if it takes too long.
fn wait(child: &mut Child, time_max: Duration) -> io::Result<Ended> {
    if let Some(ended) = wait_until(child, Instant::now() + time_max)? {
        return Ok(ended);
    }
    child.kill()?;
    // A killed process with a hanging kernel ends only when the driver has reset the device.
    wait_until(child, Instant::now() + END_TIME_MAX)?;
    Ok(Ended::Stopped)
}

fn wait_until(child: &mut Child, deadline: Instant) -> io::Result<Option<Ended>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(if status.success() { Ended::Done } else { Ended::Failed(status.to_string()) }));
        }
        if Instant::now() > deadline {
            return Ok(None);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn rows_written_before_a_hang_count() {
        let row = Row::text("case", "metric", "correct");
        let line = serde_json::to_string(&row).expect("plain data");
        let script = format!("echo '{line}'; echo garbage; exec sleep 30");
        let (rows, ended) = collect(shell(&script), Duration::from_millis(300)).expect("a shell");
        assert_eq!((rows, ended), (vec![row], Ended::Stopped));
    }

    #[test]
    fn a_failure_is_told_apart_from_success() {
        let (rows, ended) = collect(shell("exit 3"), CHILD_TIME_MAX).expect("a shell");
        assert!(rows.is_empty() && matches!(ended, Ended::Failed(_)));
        assert_eq!(collect(shell("true"), CHILD_TIME_MAX).expect("a shell").1, Ended::Done);
    }
}
