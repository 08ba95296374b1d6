//! The threads that finish large answers, and those that encode the strings of requests to a pool of
//! devices, because the engine's thread must not spend time on them.

use atoll_core::Class;
use crossbeam_channel::{Sender, unbounded};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The rest of an answer, or of a submission: it encodes or decodes strings and calls what follows.
type Job = Box<dyn FnOnce() + Send>;

/// A thread for each class that does jobs in their order. So real-time requests do not wait for
/// best-effort ones.
#[derive(Debug, Default)]
pub struct StringThreads(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// No function has needed them.
    #[default]
    New,
    Running {
        real_time: Lane,
        best_effort: Lane,
    },
    Stopped,
}

/// A thread with its jobs.
#[derive(Debug)]
struct Lane {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

impl Lane {
    fn start(name: &str) -> io::Result<Lane> {
        let (jobs, inbox) = unbounded::<Job>();
        let run = move || inbox.into_iter().for_each(|job| job());
        Ok(Lane { jobs, thread: std::thread::Builder::new().name(name.into()).spawn(run)? })
    }

    fn stop(self) {
        drop(self.jobs);
        if self.thread.join().is_err() {
            tracing::error!("a thread that decodes strings panicked");
        }
    }
}

impl StringThreads {
    /// Starts the threads, unless they run or were stopped.
    ///
    /// # Errors
    /// Those of the system.
    pub fn start(&self) -> io::Result<()> {
        let mut state = self.state();
        if matches!(*state, State::New) {
            // The kernel keeps 15 characters of a name.
            let (real_time, best_effort) = (Lane::start("atoll-decode-rt")?, Lane::start("atoll-decode-be")?);
            *state = State::Running { real_time, best_effort };
        }
        Ok(())
    }

    /// Does a job on the thread of a class; on the caller's thread if there is none.
    pub fn run(&self, class: Class, job: Job) {
        let sender = match (&*self.state(), class) {
            (State::Running { real_time: lane, .. }, Class::RealTime)
            | (State::Running { best_effort: lane, .. }, Class::BestEffort) => Some(lane.jobs.clone()),
            (State::New | State::Stopped, _) => None,
        };
        let left = match sender {
            Some(sender) => sender.send(job).err().map(|error| error.0),
            None => Some(job),
        };
        if let Some(job) = left {
            job();
        }
    }

    /// Ends the threads after all their jobs.
    pub fn stop(&self) {
        let before = std::mem::replace(&mut *self.state(), State::Stopped);
        if let State::Running { real_time, best_effort } = before {
            real_time.stop();
            best_effort.stop();
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

    fn thread_of_a_job(decoding: &StringThreads) -> ThreadId {
        let (send, ran) = channel();
        decoding
            .run(Class::BestEffort, Box::new(move || send.send(std::thread::current().id()).expect("the test waits")));
        ran.recv().expect("the job ran")
    }

    #[test]
    fn jobs_run_on_the_threads_while_they_run() {
        let (decoding, own) = (StringThreads::default(), std::thread::current().id());
        assert_eq!(thread_of_a_job(&decoding), own);
        decoding.start().expect("threads");
        let other = thread_of_a_job(&decoding);
        assert_ne!(other, own);
        decoding.start().expect("they run already");
        assert_eq!(thread_of_a_job(&decoding), other);
        decoding.stop();
        decoding.start().expect("they stay stopped");
        assert_eq!(thread_of_a_job(&decoding), own);
    }

    #[test]
    fn stopping_waits_for_all_jobs() {
        let decoding = StringThreads::default();
        decoding.start().expect("threads");
        let (send, ran) = channel();
        for job in 0..100 {
            let send = send.clone();
            decoding.run(Class::BestEffort, Box::new(move || send.send(job).expect("the test waits")));
        }
        drop(send);
        decoding.stop();
        assert_eq!(ran.try_iter().collect::<Vec<u32>>(), (0..100).collect::<Vec<u32>>());
    }

    #[test]
    fn real_time_answers_do_not_wait_for_best_effort_ones() {
        let decoding = StringThreads::default();
        decoding.start().expect("threads");
        let (release, held) = channel::<()>();
        decoding.run(Class::BestEffort, Box::new(move || held.recv().unwrap_or_default()));
        let (send, ran) = channel();
        for class in [Class::BestEffort, Class::RealTime] {
            let send = send.clone();
            decoding.run(class, Box::new(move || send.send(class).expect("the test waits")));
        }
        assert_eq!(ran.recv(), Ok(Class::RealTime));
        drop(release);
        assert_eq!(ran.recv(), Ok(Class::BestEffort));
        decoding.stop();
    }
}
