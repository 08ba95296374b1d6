//! Metrics of sessions of CUDA programs.

use super::metric::{Kind, Metric, counter, gauge, of_daemon};
use std::sync::atomic::Ordering::Relaxed;

/// The metrics of sessions of CUDA programs.
pub(super) const CUDA_METRICS: &[Metric] = &[
    of_daemon(Kind::Gauge, "atoll_cuda_sessions", "Open sessions of CUDA programs", |s, out| {
        out.integer(&[], s.cuda.open.load(Relaxed));
    }),
    of_daemon(
        Kind::Gauge,
        "atoll_cuda_session_memory_bytes",
        "Memory of open CUDA sessions, on a device or suspended",
        |s, out| {
            out.integer(&[], s.cuda.memory_bytes.load(Relaxed));
        },
    ),
    of_daemon(Kind::Counter, "atoll_cuda_sessions_total", "Sessions of CUDA programs that were begun", |s, out| {
        out.integer(&[], s.cuda.begun.load(Relaxed));
    }),
    gauge("atoll_cuda_sessions_suspended", "CUDA sessions whose memory is in host memory", |s, out| {
        out.integer(&[], s.engine.suspension.sessions);
    }),
    gauge("atoll_cuda_session_host_bytes", "Bytes of the memory of suspended CUDA sessions", |s, out| {
        out.integer(&[], s.engine.suspension.bytes);
    }),
    counter("atoll_cuda_session_suspensions_total", "CUDA sessions that were moved to host memory", |s, out| {
        out.integer(&[], s.engine.suspension.suspensions);
    }),
    counter("atoll_cuda_session_returns_total", "Suspended CUDA sessions that came back to a device", |s, out| {
        out.integer(&[], s.engine.suspension.resumptions);
    }),
    counter(
        "atoll_cuda_session_suspension_failures_total",
        "CUDA sessions that were not suspended for lack of host memory, or because their memory was lost",
        |s, out| {
            out.integer(&[], s.engine.suspension.failures);
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_cuda_session_moves_total",
        "Moves of suspended CUDA sessions to other devices",
        |s, out| {
            out.integer(&[], s.cuda.moves.load(Relaxed));
        },
    ),
    of_daemon(
        Kind::Gauge,
        "atoll_cuda_sessions_detached",
        "Open CUDA sessions over the network whose client has lost its connection",
        |s, out| {
            out.integer(&[], s.cuda.detached.load(Relaxed));
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_cuda_session_resumes_total",
        "Connections with which CUDA sessions went on after they had lost one",
        |s, out| {
            out.integer(&[], s.cuda.resumed.load(Relaxed));
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_cuda_sessions_expired_total",
        "CUDA sessions that ended because their client did not come back in time",
        |s, out| {
            out.integer(&[], s.cuda.expired.load(Relaxed));
        },
    ),
    of_daemon(
        Kind::Gauge,
        "atoll_cuda_warm_bytes",
        "Bytes of code of CUDA programs that are kept for later sessions",
        |s, out| {
            out.integer(&[], s.cuda.warm_bytes.load(Relaxed));
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_cuda_warm_hits_total",
        "Images that CUDA sessions did not send, and PTX that was not read, since earlier sessions had them",
        |s, out| {
            out.integer(&[("kind", "image")], s.cuda.warm_images.load(Relaxed));
            out.integer(&[("kind", "ptx")], s.cuda.warm_texts.load(Relaxed));
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_cuda_flushes_total",
        "Tasks of CUDA programs, each with the calls that ran together",
        |s, out| {
            out.integer(&[], s.cuda.flushes.load(Relaxed));
        },
    ),
    of_daemon(Kind::Counter, "atoll_cuda_launches_total", "Kernel launches of CUDA programs", |s, out| {
        out.integer(&[], s.cuda.launches.load(Relaxed));
    }),
    of_daemon(
        Kind::Gauge,
        "atoll_cuda_stored_functions",
        "Runs of CUDA programs that open sessions have stored as functions",
        |s, out| {
            out.integer(&[], s.cuda.stored_functions.load(Relaxed));
        },
    ),
    of_daemon(Kind::Gauge, "atoll_cuda_stored_bytes", "Bytes of these stored functions", |s, out| {
        out.integer(&[], s.cuda.stored_bytes.load(Relaxed));
    }),
    of_daemon(
        Kind::Counter,
        "atoll_cuda_stored_calls_total",
        "Runs of CUDA programs that were sent as one call of a stored function",
        |s, out| {
            out.integer(&[], s.cuda.stored_calls.load(Relaxed));
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_cuda_stored_differences_total",
        "Runs of CUDA programs that differed from a stored function and were sent as their calls",
        |s, out| {
            out.integer(&[], s.cuda.stored_differences.load(Relaxed));
        },
    ),
];
