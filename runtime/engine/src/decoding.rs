//! The thread that finishes large answers, because the engine's thread must not spend time on them.

use crossbeam_channel::{Sender, unbounded};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The rest of an answer: it computes the answer and calls the reply.
type Job = Box<dyn FnOnce() + Send>;

/// The thread that finishes large answers, in their order.
#[derive(Debug, Default)]
pub(crate) struct DecodingThread(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// No function has needed it.
    #[default]
    New,
    Running(Sender<Job>, JoinHandle<()>),
    Stopped,
}

impl DecodingThread {
    /// Starts the thread, unless it runs or was stopped.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        let mut state = self.state();
        if matches!(*state, State::New) {
            let (send, jobs) = unbounded::<Job>();
            let run = move || jobs.into_iter().for_each(|job| job());
            *state = State::Running(send, std::thread::Builder::new().name("atoll-decoder".into()).spawn(run)?);
        }
        Ok(())
    }

    /// Does a job on the thread; on the caller's thread if it does not run.
    pub(crate) fn run(&self, job: Job) {
        let sender = match &*self.state() {
            State::Running(sender, _) => Some(sender.clone()),
            State::New | State::Stopped => None,
        };
        let left = match sender {
            Some(sender) => sender.send(job).err().map(|error| error.0),
            None => Some(job),
        };
        if let Some(job) = left {
            job();
        }
    }

    /// Ends the thread after all its jobs.
    pub(crate) fn stop(&self) {
        let before = std::mem::replace(&mut *self.state(), State::Stopped);
        if let State::Running(sender, thread) = before {
            drop(sender);
            if thread.join().is_err() {
                tracing::error!("the thread that decodes strings panicked");
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread::ThreadId;

    fn thread_of_a_job(decoding: &DecodingThread) -> ThreadId {
        let (send, ran) = channel();
        decoding.run(Box::new(move || send.send(std::thread::current().id()).expect("the test waits")));
        ran.recv().expect("the job ran")
    }

    #[test]
    fn jobs_run_on_the_thread_while_it_runs() {
        let (decoding, own) = (DecodingThread::default(), std::thread::current().id());
        assert_eq!(thread_of_a_job(&decoding), own);
        decoding.start().expect("a thread");
        let other = thread_of_a_job(&decoding);
        assert_ne!(other, own);
        decoding.start().expect("it runs already");
        assert_eq!(thread_of_a_job(&decoding), other);
        decoding.stop();
        decoding.start().expect("it stays stopped");
        assert_eq!(thread_of_a_job(&decoding), own);
    }

    #[test]
    fn stopping_waits_for_all_jobs() {
        let decoding = DecodingThread::default();
        decoding.start().expect("a thread");
        let (send, ran) = channel();
        for job in 0..100 {
            let send = send.clone();
            decoding.run(Box::new(move || send.send(job).expect("the test waits")));
        }
        drop(send);
        decoding.stop();
        assert_eq!(ran.try_iter().collect::<Vec<u32>>(), (0..100).collect::<Vec<u32>>());
    }
}
