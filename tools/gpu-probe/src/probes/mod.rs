//! The probes: one file each, and a table of all.

mod barrier_exit;
mod dispatch;
mod entry_check;
mod evicted_kernel;
mod flag_routes;
mod indirect_entry;
mod preemptible;
mod read_cost;
pub(crate) mod sticky_error;

use crate::bench::Bench;
use crate::device::ProbeError;
use crate::report::Findings;

/// One measurement.
pub(crate) struct Probe {
    /// Name on the command line.
    pub(crate) name: &'static str,
    /// What it measures.
    pub(crate) about: &'static str,
    /// Whether it may hang or break the context, and therefore runs in its own process.
    pub(crate) isolated: bool,
    /// Runs it. Rows found before an error are kept.
    pub(crate) run: fn(&Bench, &mut Findings) -> Result<(), ProbeError>,
}

/// All probes, in the order in which they run.
pub(crate) const PROBES: [Probe; 8] = [
    Probe {
        name: "evicted-kernel",
        about: "cost of a kernel whose blocks all leave at entry, in a full queue",
        isolated: false,
        run: evicted_kernel::run,
    },
    Probe {
        name: "flag-routes",
        about: "time until a running kernel sees a flag, per way of writing it, idle and under load",
        isolated: false,
        run: flag_routes::run,
    },
    Probe { name: "read-cost", about: "what a block pays for reading the flag", isolated: false, run: read_cost::run },
    Probe {
        name: "entry-check",
        about: "overhead of the entry check, the progress byte and checks in loops on kernels of 2 to 100 us",
        isolated: false,
        run: entry_check::run,
    },
    Probe {
        name: "dispatch",
        about: "candidates by direct call and by branch table",
        isolated: false,
        run: dispatch::run,
    },
    Probe {
        name: "barrier-exit",
        about: "whether barriers hold after some threads have exited",
        isolated: true,
        run: barrier_exit::run,
    },
    Probe {
        name: "indirect-entry",
        about: "whether a kernel can jump into another kernel",
        isolated: true,
        run: indirect_entry::run,
    },
    Probe {
        name: "sticky-error",
        about: "what remains of a process after a kernel faulted",
        isolated: true,
        run: sticky_error::run,
    },
];

/// The probe with this name.
pub(crate) fn find(name: &str) -> Option<&'static Probe> {
    PROBES.iter().find(|probe| probe.name == name)
}
