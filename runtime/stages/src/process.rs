//! The daemon's side of a stage process: starts it, calls it, and kills it at its time limit.

use crate::limits::{CALL_TIME_MAX, GROUP_BYTES, PROGRAMS_KEPT_MAX};
use crate::program::Program;
use crate::tensor::{Form, Tensor};
use crate::wire::{Answer, Part, Request, bytes_of, read_head, read_tensors, write};
use atoll_device::cpu_time::process_cpu_time;
use atoll_device::{GroupUse, ProcessGroup, ProcessGroups};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde::Serialize;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Weak;
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
    /// Makes a control group for each process; `None` if the daemon may make none.
    pub groups: Option<Weak<dyn ProcessGroups>>,
}

impl Default for StageConfig {
    /// The running program, `atoll stages`.
    fn default() -> StageConfig {
        let (program, arguments) = ("/proc/self/exe".into(), vec!["stages".into()]);
        StageConfig { program, arguments, call_time: CALL_TIME_MAX, groups: None }
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
    /// Its control group. Dropped after the process has ended.
    group: Option<Box<dyn ProcessGroup>>,
    /// Its CPU time, once it was waited for.
    cpu_at_end: Option<Duration>,
}

impl StageProcess {
    /// Starts a process for a tenant, puts it into a control group, and waits until it is in its
    /// jail. Without a group, its own limits of memory hold. Blocks.
    ///
    /// # Errors
    /// It cannot be started, or has no jail.
    pub fn start(config: &StageConfig, tenant: &str) -> Result<StageProcess, CallError> {
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
        let groups = config.groups.as_ref().and_then(Weak::upgrade);
        let admitted = groups.map(|groups| groups.admit_process(tenant, GROUP_BYTES, child.id())).transpose();
        let (group, without) = match admitted {
            Ok(group) => (group, None),
            Err(error) => (None, Some(format!("control group: {error}"))),
        };
        let mut process = StageProcess {
            child,
            input,
            output: BufReader::new(Pipe { fd: output, ends: Instant::now() + config.call_time }),
            call_time: config.call_time,
            programs: VecDeque::new(),
            lacks: Vec::new(),
            group,
            cpu_at_end: None,
        };
        for fd in [process.input.as_fd(), process.output.get_ref().fd.as_fd()] {
            let flags = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK));
            flags.map_err(|error| lost("its pipes cannot be set up", error.into()))?;
        }
        match process.answer()? {
            Answer::Ready { lacks } => process.lacks = lacks.into_iter().chain(without).collect(),
            Answer::Failed(reason) => return Err(CallError::Lost(reason)),
            other => return Err(process.unexpected(&other)),
        }
        Ok(process)
    }

    /// Parts of the jail that this machine does not support, and why the process has no control
    /// group although the daemon makes groups.
    pub fn lacks(&self) -> &[String] {
        &self.lacks
    }

    /// Whether the process runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.wait(), Ok(None))
    }

    /// CPU time of the process as the kernel counts it.
    pub fn cpu_time(&self) -> Duration {
        self.cpu_at_end.or_else(|| process_cpu_time(self.child.id())).unwrap_or_default()
    }

    /// Waits for the process if it has ended.
    fn wait(&mut self) -> std::io::Result<Option<ExitStatus>> {
        // Read before the process is waited for, since the kernel's count is lost then.
        let counted = process_cpu_time(self.child.id());
        let status = self.child.try_wait()?;
        if status.is_some() {
            self.cpu_at_end = self.cpu_at_end.or(counted);
        }
        Ok(status)
    }

    /// What the kernel counts for its control group; `None` without a group. The second value says
    /// whether it stays above its limit of memory, so that the caller drops it.
    pub fn group_use(&self) -> Option<(GroupUse, bool)> {
        let group = self.group.as_ref()?;
        let is_over = group.observe(Instant::now()).is_some();
        Some((group.usage(), is_over))
    }

    /// Makes sure that the process keeps a program, under a number that stands for this program
    /// only. Blocks.
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
        let is_each = forms.len() == inputs.len();
        let part = |(form, bytes): (Form, &&[u8])| Part { form, bytes: bytes.len() };
        let parts: Vec<Part> = forms.into_iter().zip(inputs).map(part).collect();
        if !is_each || bytes_of(&parts).is_none() {
            return Err(CallError::Failed("its inputs are too large, or do not match their shapes".into()));
        }
        self.send(&Request::Run { id, inputs: parts }, inputs)?;
        match self.answer()? {
            Answer::Outputs(parts) => {
                let bytes = bytes_of(&parts).ok_or_else(|| CallError::Lost("its outputs are too large".into()))?;
                // The outputs stay in the pipe, so the caller ends the process.
                if !admit(bytes) {
                    return Err(CallError::NoRoom);
                }
                let tensors = read_tensors(&mut self.output, parts);
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
        match (error.kind(), self.wait()) {
            (ErrorKind::TimedOut, _) => CallError::TimeLimit(self.call_time),
            (_, Ok(Some(status))) => CallError::Lost(self.end(status)),
            _ => CallError::Lost(error.to_string()),
        }
    }

    /// Why the process ended.
    fn end(&self, status: ExitStatus) -> String {
        match self.group_use() {
            Some((used, _)) if used.kills > 0 => {
                format!(
                    "it reached the limit of its control group, {} MiB of memory, and was killed",
                    GROUP_BYTES >> 20
                )
            }
            _ => format!("it ended with {status}"),
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
    use atoll_device::GroupLimit;
    use std::sync::{Arc, Mutex};

    /// Runs a shell script in place of the process.
    fn script(text: &str, call_time: Duration) -> Result<StageProcess, CallError> {
        start(text, call_time, None)
    }

    fn start(
        text: &str,
        call_time: Duration,
        groups: Option<Weak<dyn ProcessGroups>>,
    ) -> Result<StageProcess, CallError> {
        let arguments = ["-c", text].map(Into::into).into();
        StageProcess::start(&StageConfig { program: "/bin/sh".into(), arguments, call_time, groups }, "a")
    }

    /// Groups that exist in memory only. The first process that is admitted counts as killed.
    #[derive(Debug, Default)]
    struct Groups(Mutex<Vec<(String, u64, u32)>>);

    #[derive(Debug)]
    struct Group(u64);

    impl ProcessGroups for Groups {
        fn admit_process(&self, tenant: &str, bytes: u64, pid: u32) -> std::io::Result<Box<dyn ProcessGroup>> {
            let mut admitted = self.0.lock().unwrap();
            if admitted.len() == 2 {
                return Err(ErrorKind::PermissionDenied.into());
            }
            admitted.push((tenant.into(), bytes, pid));
            Ok(Box::new(Group(u64::from(admitted.len() == 1))))
        }
    }

    impl ProcessGroup for Group {
        fn observe(&self, _: Instant) -> Option<GroupLimit> {
            None
        }

        fn usage(&self) -> GroupUse {
            GroupUse { kills: self.0, ..GroupUse::default() }
        }
    }

    fn wait_for_end(process: &mut StageProcess) {
        while process.is_alive() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_process_is_in_a_group_before_it_gets_code_and_a_kill_at_its_limit_is_told() {
        let groups: Arc<Groups> = Arc::default();
        let weak = || {
            let weak: Weak<Groups> = Arc::downgrade(&groups);
            Some(weak as Weak<dyn ProcessGroups>)
        };
        let ready = says(r#"{"ready":{"lacks":[]}}"#);
        let mut killed = start(&format!("{ready} exit 9"), LONG, weak()).unwrap();
        wait_for_end(&mut killed);
        let told = run(&mut killed).to_string();
        assert!(told.contains("it reached the limit of its control group, 1056 MiB of memory"), "{told}");
        let mut ended = start(&format!("{ready} exit 9"), LONG, weak()).unwrap();
        wait_for_end(&mut ended);
        assert!(run(&mut ended).to_string().contains("it ended with exit status: 9"));
        let admitted = groups.0.lock().unwrap().clone();
        assert_eq!(admitted[0], ("a".into(), GROUP_BYTES, killed.child.id()));
        let without = start(&format!("{ready} exec sleep 600"), LONG, weak()).unwrap();
        assert!(without.lacks()[0].starts_with("control group: permission denied"), "{:?}", without.lacks());
        assert_eq!(without.group_use(), None);
        drop(groups);
        assert!(start(&format!("{ready} exec sleep 600"), LONG, None).unwrap().lacks().is_empty());
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
        for answer in [
            r#"{"outputs":[{"form":{"datatype":"FP32","shape":[1000000000000]},"bytes":4000000000000}]}"#,
            r#""done""#,
            "}",
            "[]",
        ] {
            let mut process = script(&format!("{ready} {} exec sleep 600", says(answer)), LONG).unwrap();
            let error = run(&mut process);
            assert!(error.is_loss(), "{answer}: {error}");
        }
        let outputs = says(r#"{"outputs":[{"form":{"datatype":"UINT8","shape":[3]},"bytes":3}]}"#);
        let mut process = script(&format!("{ready} {outputs} printf abc; exec sleep 600"), LONG).unwrap();
        let tensors = process.run(1, Vec::new(), &[], |bytes| bytes == 3).unwrap();
        assert_eq!(tensors, [Tensor::of_bytes(vec![3], b"abc".to_vec())]);
        let mut process = script(&format!("{ready} {outputs} printf abc; exec sleep 600"), LONG).unwrap();
        assert_eq!(process.run(1, Vec::new(), &[], |_| false).unwrap_err(), CallError::NoRoom);
    }
}
