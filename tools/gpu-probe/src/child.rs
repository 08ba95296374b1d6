//! Probes in a process of their own: what hangs is ended, what breaks its context breaks only its own.

use crate::report::Row;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time such a probe may take.
const CHILD_TIME_MAX: Duration = Duration::from_secs(20);
/// How often the child is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Most bytes of rows that are read; a probe writes some kilobytes.
const ROWS_BYTES_MAX: u64 = 1 << 20;

/// How a child ended, beside its rows.
#[derive(Debug, PartialEq)]
pub(crate) enum Ended {
    /// By itself.
    Done,
    /// It hung.
    Stopped,
    /// In another way, as the operating system puts it.
    Failed(String),
}

/// Runs this program again for one probe, and reads the rows that it writes as lines of JSON.
pub(crate) fn run(probe: &str, device_index: u32) -> io::Result<(Vec<Row>, Ended)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--child", probe, "--device", &device_index.to_string()]);
    collect(command, CHILD_TIME_MAX)
}

fn collect(mut command: Command, time_max: Duration) -> io::Result<(Vec<Row>, Ended)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        // A child that is killed leaves half a line; what was read counts.
        _ = output.map(|pipe| pipe.take(ROWS_BYTES_MAX).read_to_string(&mut text));
        text
    });
    let ended = wait(&mut child, time_max)?;
    let text = reader.join().unwrap_or_default();
    Ok((text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(), ended))
}

fn wait(child: &mut Child, time_max: Duration) -> io::Result<Ended> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { Ended::Done } else { Ended::Failed(status.to_string()) });
        }
        if started.elapsed() > time_max {
            child.kill()?;
            child.wait()?;
            return Ok(Ended::Stopped);
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
