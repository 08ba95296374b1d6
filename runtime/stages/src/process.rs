//! The daemon's side of a stage process: starts it, calls it, and kills it at its time limit.

use crate::limits::{CALL_TIME_MAX, PROGRAMS_KEPT_MAX};
use crate::program::Program;
use crate::tensor::{Form, Tensor};
use crate::wire::{Answer, Request, bytes_of, read_head, read_tensors, write};
use atoll_device::cpu_time::process_cpu_time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde::Serialize;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How to start a stage process.
#[derive(Clone, Debug)]
pub struct StageConfig {
    /// The program, which enters the jail and calls [`crate::serve`].
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Longest time of a call.
    pub call_time: Duration,
}

impl Default for StageConfig {
    /// The running program, `atoll stages`.
    fn default() -> StageConfig {
        StageConfig { program: "/proc/self/exe".into(), arguments: vec!["stages".into()], call_time: CALL_TIME_MAX }
    }
}

/// Why a call has no outputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The program refused its file or its inputs, or reached one of its limits.
    #[error("{0}")]
    Failed(String),
    /// The call took longer than the limit, and the process was killed.
    #[error("it took longer than {} s, the limit of a stage; its process was killed", .0.as_secs_f64())]
    TimeLimit(Duration),
    /// The process ended, or sent what is not an answer, and was killed. The text is the cause.
    #[error("its process was lost: {0}")]
    Lost(String),
    /// The daemon has no memory for the outputs now.
    #[error("there is not enough memory for its outputs now")]
    NoRoom,
}

impl CallError {
    /// Whether the process is gone.
    pub fn is_loss(&self) -> bool {
        matches!(self, CallError::TimeLimit(_) | CallError::Lost(_))
    }
}

/// A running stage process. Dropping it kills it.
#[derive(Debug)]
pub struct StageProcess {
    child: Child,
    input: OwnedFd,
    output: BufReader<Pipe>,
    call_time: Duration,
    /// The programs that it keeps, the one that was used last at the end.
    programs: VecDeque<u64>,
    lacks: Vec<String>,
}

impl StageProcess {
    /// Starts a process, and waits until it is in its jail. Blocks.
    ///
    /// # Errors
    /// It cannot be started, or has no jail.
    pub fn start(config: &StageConfig) -> Result<StageProcess, CallError> {
        let lost = |what: &str, error: std::io::Error| CallError::Lost(format!("{what}: {error}"));
        let mut command = Command::new(&config.program);
        // The name in process lists, and a group of its own, so that signals from a terminal reach
        // only the daemon.
        command.arg0("atoll").args(&config.arguments).env_clear().process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
            command.env("LD_LIBRARY_PATH", path);
        }
        let mut child = command.spawn().map_err(|error| lost("it cannot be started", error))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(CallError::Lost("it has no pipes".into()));
        };
        let (input, output) = (OwnedFd::from(input), OwnedFd::from(output));
        let mut process = StageProcess {
            child,
            input,
            output: BufReader::new(Pipe { fd: output, ends: Instant::now() + config.call_time }),
            call_time: config.call_time,
            programs: VecDeque::new(),
            lacks: Vec::new(),
        };
        for fd in [process.input.as_fd(), process.output.get_ref().fd.as_fd()] {
            let flags = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK));
            flags.map_err(|error| lost("its pipes cannot be set up", error.into()))?;
        }
        match process.answer()? {
            Answer::Ready { lacks } => process.lacks = lacks,
            Answer::Failed(reason) => return Err(CallError::Lost(reason)),
            other => return Err(process.unexpected(&other)),
        }
        Ok(process)
    }

    /// Parts of the jail that this machine does not support.
    pub fn lacks(&self) -> &[String] {
        &self.lacks
    }

    /// Whether the process runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// CPU time of the process as the kernel counts it.
    pub fn cpu_time(&self) -> Duration {
        process_cpu_time(self.child.id()).unwrap_or_default()
    }

    /// Makes sure that the process keeps a program under the number `id`, which no other program
    /// may have. Blocks.
    ///
    /// # Errors
    /// The program or its file is not valid, or the process is lost.
    pub fn prepare(&mut self, id: u64, program: &Program, file: &[u8]) -> Result<(), CallError> {
        if let Some(at) = self.programs.iter().position(|kept| *kept == id) {
            self.programs.remove(at);
            self.programs.push_back(id);
            return Ok(());
        }
        if self.programs.len() >= PROGRAMS_KEPT_MAX
            && let Some(id) = self.programs.pop_front()
        {
            self.ask(&Request::Drop { id }, &[])?;
        }
        let request = Request::Prepare { id, program: program.clone(), file_bytes: file.len() };
        self.ask(&request, &[file])?;
        self.programs.push_back(id);
        Ok(())
    }

    /// Runs a program that was prepared. `admit` gets the number of bytes of the outputs before
    /// they are read, and says whether there is memory for them. The forms of the outputs are those
    /// that the process states; only the numbers of bytes are checked. Blocks.
    ///
    /// # Errors
    /// The program failed, or the process is lost.
    pub fn run(
        &mut self,
        id: u64,
        forms: Vec<Form>,
        inputs: &[&[u8]],
        admit: impl FnOnce(usize) -> bool,
    ) -> Result<Vec<Tensor>, CallError> {
        if bytes_of(&forms) != Some(inputs.iter().map(|input| input.len()).sum()) {
            return Err(CallError::Failed("its inputs are too large, or do not match their shapes".into()));
        }
        self.send(&Request::Run { id, inputs: forms }, inputs)?;
        match self.answer()? {
            Answer::Outputs(forms) => {
                let bytes = bytes_of(&forms).ok_or_else(|| CallError::Lost("its outputs are too large".into()))?;
                // The outputs stay in the pipe, so the caller ends the process.
                if !admit(bytes) {
                    return Err(CallError::NoRoom);
                }
                let tensors = read_tensors(&mut self.output, forms);
                tensors.map_err(|error| self.failure(&error))
            }
            Answer::Failed(reason) => Err(CallError::Failed(reason)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Sends a request, and waits for an answer without bytes.
    fn ask(&mut self, request: &Request, parts: &[&[u8]]) -> Result<(), CallError> {
        self.send(request, parts)?;
        match self.answer()? {
            Answer::Done => Ok(()),
            Answer::Failed(reason) => Err(CallError::Failed(reason)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Sends a request. The time limit begins now.
    fn send(&mut self, head: &impl Serialize, parts: &[&[u8]]) -> Result<(), CallError> {
        let ends = Instant::now() + self.call_time;
        self.output.get_mut().ends = ends;
        let written = write(&mut Input { fd: self.input.as_fd(), ends }, head, parts);
        written.map_err(|error| self.failure(&error))
    }

    fn answer(&mut self) -> Result<Answer, CallError> {
        read_head(&mut self.output).map_err(|error| self.failure(&error))
    }

    fn unexpected(&mut self, answer: &Answer) -> CallError {
        CallError::Lost(format!("it sent an unexpected answer: {answer:?}").chars().take(200).collect())
    }

    /// Why a pipe failed.
    fn failure(&mut self, error: &std::io::Error) -> CallError {
        match (error.kind(), self.child.try_wait()) {
            (ErrorKind::TimedOut, _) => CallError::TimeLimit(self.call_time),
            (_, Ok(Some(status))) => CallError::Lost(format!("it ended with {status}")),
            _ => CallError::Lost(error.to_string()),
        }
    }
}

impl Drop for StageProcess {
    fn drop(&mut self) {
        // Ignores errors: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pipe from the process. Reads fail once the time `ends` has passed.
#[derive(Debug)]
struct Pipe {
    fd: OwnedFd,
    ends: Instant,
}

impl Read for Pipe {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        waiting(self.fd.as_fd(), PollFlags::IN, self.ends, || rustix::io::read(&self.fd, &mut *bytes))
    }
}

/// A pipe to the process. Writes fail once the time `ends` has passed.
struct Input<'a> {
    fd: BorrowedFd<'a>,
    ends: Instant,
}

impl Write for Input<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        waiting(self.fd, PollFlags::OUT, self.ends, || rustix::io::write(self.fd, bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Repeats a call on a pipe that does not block, until it transfers something or the time is over.
fn waiting(
    fd: BorrowedFd<'_>,
    flags: PollFlags,
    ends: Instant,
    mut transfer: impl FnMut() -> rustix::io::Result<usize>,
) -> std::io::Result<usize> {
    loop {
        match transfer() {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
        let left = ends.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let left = Timespec::try_from(left).map_err(|_| ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&left)) {
            Err(rustix::io::Errno::INTR) | Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell script in place of the process.
    fn script(text: &str, call_time: Duration) -> Result<StageProcess, CallError> {
        let arguments = ["-c", text].map(Into::into).into();
        StageProcess::start(&StageConfig { program: "/bin/sh".into(), arguments, call_time })
    }

    /// A script that writes an answer.
    fn says(json: &str) -> String {
        let length: String = (json.len() as u32).to_le_bytes().iter().map(|byte| format!("\\{byte:03o}")).collect();
        format!("printf '{length}'; printf '%s' '{json}';")
    }

    const LONG: Duration = Duration::from_secs(300);

    fn run(process: &mut StageProcess) -> CallError {
        process.run(1, Vec::new(), &[], |_| true).unwrap_err()
    }

    #[test]
    fn a_process_that_does_not_answer_is_killed() {
        let ready = says(r#"{"ready":{"lacks":["x"]}}"#);
        let mut process = script(&format!("{ready} exec sleep 600"), LONG).unwrap();
        assert_eq!(process.lacks(), ["x"]);
        process.call_time = Duration::from_millis(50);
        assert_eq!(run(&mut process), CallError::TimeLimit(Duration::from_millis(50)));
        // The limit also holds while the process reads no input.
        let large = vec![0; 1 << 20];
        let form = Form { datatype: atoll_protocol::DataType::Uint8, shape: vec![1 << 20] };
        let error = process.run(1, vec![form], &[&large], |_| true).unwrap_err();
        assert_eq!(error, CallError::TimeLimit(Duration::from_millis(50)));
        assert!(error.is_loss());
    }

    #[test]
    fn answers_that_are_not_valid_are_losses() {
        let error = script("exit 3", LONG).unwrap_err();
        assert!(error.is_loss() && error.to_string().contains("its process was lost"), "{error}");
        let error = script(&says(r#"{"failed":"no jail"}"#), LONG).unwrap_err();
        assert_eq!(error, CallError::Lost("no jail".into()));
        let ready = says(r#"{"ready":{"lacks":[]}}"#);
        for answer in [r#"{"outputs":[{"datatype":"FP32","shape":[1000000000000]}]}"#, r#""done""#, "}", "[]"] {
            let mut process = script(&format!("{ready} {} exec sleep 600", says(answer)), LONG).unwrap();
            let error = run(&mut process);
            assert!(error.is_loss(), "{answer}: {error}");
        }
        let outputs = says(r#"{"outputs":[{"datatype":"UINT8","shape":[3]}]}"#);
        let mut process = script(&format!("{ready} {outputs} printf abc; exec sleep 600"), LONG).unwrap();
        let tensors = process.run(1, Vec::new(), &[], |bytes| bytes == 3).unwrap();
        assert_eq!(tensors, [Tensor::of_bytes(vec![3], b"abc".to_vec())]);
        let mut process = script(&format!("{ready} {outputs} printf abc; exec sleep 600"), LONG).unwrap();
        assert_eq!(process.run(1, Vec::new(), &[], |_| false).unwrap_err(), CallError::NoRoom);
    }
}
