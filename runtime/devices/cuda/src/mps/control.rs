//! The connection to a control daemon, through NVIDIA's command-line program.

use super::{FOLDER_VARIABLE, PROGRAM, folder};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Interval of checks for an answer.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Longest answer in bytes; lists of processes are far shorter.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Why a request to a control daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum MpsError {
    /// The program cannot be run.
    #[error("cannot run {program}: {source}")]
    Program {
        /// The program.
        program: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The program did not answer in time.
    #[error("MPS does not answer `{0}`")]
    Silent(String),
    /// The daemon refused the request.
    #[error("MPS refused `{question}`: {answer}")]
    Refused {
        /// The request.
        question: String,
        /// The answer.
        answer: String,
    },
}

/// An MPS control daemon, identified by the folder in which it listens. It need not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpsControl {
    program: PathBuf,
    folder: PathBuf,
}

impl MpsControl {
    pub(super) fn new(program: PathBuf, folder: PathBuf) -> MpsControl {
        MpsControl { program, folder }
    }

    /// The control daemon of which CUDA programs in this process's environment become clients, if
    /// it runs.
    pub fn ambient() -> Option<MpsControl> {
        let control = MpsControl::new(PROGRAM.into(), folder());
        control.folder.join("control").exists().then_some(control)
    }

    /// The folder in which it listens.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether it runs and answers.
    pub fn answers(&self) -> bool {
        self.ask("get_default_active_thread_percentage").is_ok_and(|answer| answer.trim().parse::<f64>().is_ok())
    }

    /// Process ids of its clients.
    pub fn clients(&self) -> Result<Vec<u32>, MpsError> {
        Ok(self.clients_by_server()?.into_iter().flat_map(|(_, clients)| clients).collect())
    }

    /// Terminates the GPU work of a client, so that its process can be killed without harm to other
    /// clients. False if the process is no client. Takes milliseconds, a few seconds at most.
    pub fn terminate(&self, client: u32) -> Result<bool, MpsError> {
        let Some((server, _)) = self.clients_by_server()?.into_iter().find(|(_, clients)| clients.contains(&client))
        else {
            return Ok(false);
        };
        let question = format!("terminate_client {server} {client}");
        let answer = self.ask(&question)?;
        let said = answer.to_ascii_lowercase();
        // The exit status only tells whether the request was delivered.
        if ["error", "fail", "invalid"].iter().any(|word| said.contains(word)) {
            return Err(MpsError::Refused { question, answer: answer.trim().to_owned() });
        }
        Ok(true)
    }

    /// Tells it to end, which it does once it has no clients.
    pub(super) fn quit(&self) -> Result<(), MpsError> {
        self.ask("quit").map(drop)
    }

    /// Starts one as a child of this process, in a process group of its own, so that signals from a
    /// terminal do not reach it.
    pub(super) fn start(&self) -> Result<Child, MpsError> {
        use std::os::unix::process::CommandExt;
        let log = self.folder.join("log");
        std::fs::create_dir_all(&log).map_err(|source| self.unable(source))?;
        let mut command = self.command();
        command.arg("-f").env("CUDA_MPS_LOG_DIRECTORY", log).stdin(Stdio::null()).process_group(0);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|source| self.unable(source))
    }

    fn clients_by_server(&self) -> Result<Vec<(u32, Vec<u32>)>, MpsError> {
        let clients = |server| Ok((server, numbers(&self.ask(&format!("get_client_list {server}"))?)));
        numbers(&self.ask("get_server_list")?).into_iter().map(clients).collect()
    }

    fn ask(&self, question: &str) -> Result<String, MpsError> {
        let mut command = self.command();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| self.unable(e))?;
        let asked = child.stdin.take().map(|mut stdin| stdin.write_all(format!("{question}\n").as_bytes()));
        let until = Instant::now() + ANSWER_WITHIN;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
                Ok(None) | Err(_) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(MpsError::Silent(question.to_owned()));
                }
            }
        };
        let (out, err) = (read(child.stdout.take()), read(child.stderr.take()));
        match (status.success(), asked) {
            (true, Some(Ok(()))) => Ok(out),
            _ => Err(MpsError::Refused {
                question: question.to_owned(),
                answer: format!("{out}{err}").trim().to_owned(),
            }),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env(FOLDER_VARIABLE, &self.folder);
        command
    }

    fn unable(&self, source: std::io::Error) -> MpsError {
        MpsError::Program { program: self.program.display().to_string(), source }
    }
}

/// The output of a process that has ended.
fn read(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    let answer = from.map(|from| from.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes));
    // Unreadable output counts as empty.
    if answer.is_some_and(|answer| answer.is_ok()) {
        String::from_utf8_lossy(&bytes).into_owned()
    } else {
        String::new()
    }
}

/// Process ids, one per line. Lines that begin with another word are ignored.
fn numbers(answer: &str) -> Vec<u32> {
    answer.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processes_are_parsed() {
        assert_eq!(numbers("4711\n 12 \n"), [4711, 12]);
        assert!(numbers("no server is running\n\n").is_empty());
    }

    #[test]
    fn missing_silent_and_refusing_programs_are_distinguished() {
        let ask = |program: &str| {
            MpsControl::new(program.into(), "/nowhere".into()).ask("get_server_list").expect_err(program)
        };
        assert!(matches!(ask("/nowhere/mps"), MpsError::Program { .. }));
        assert!(matches!(ask("false"), MpsError::Refused { .. }));
        assert!(!MpsControl::new("true".into(), "/nowhere".into()).answers(), "its answer is not a number");
    }
}
