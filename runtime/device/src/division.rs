//! The ways to divide a device among clients, and what each of them guarantees.

use crate::info::DeviceInfo;
use crate::lanes::LaneUnits;
use std::fmt;

/// A way to divide a device among clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// Lanes of the host device: each compute unit is a thread.
    Threads,
    /// Lanes of an NVIDIA GPU: green contexts.
    GreenContexts,
    /// Lanes of an AMD GPU: streams with a mask of compute units.
    UnitMasks,
    /// MPS: processes that use an NVIDIA GPU together, each with a percentage of its compute units.
    Mps,
    /// MIG: an instance of an NVIDIA GPU, which is a device of its own.
    Mig,
    /// No lanes: clients have their parts of the time only.
    TimeOnly,
}

/// What a [`Division`] guarantees to a client, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// The name of the division.
    pub name: &'static str,
    /// The compute units that a client has.
    pub compute_units: &'static str,
    /// The bandwidth of the memory that it has.
    pub memory_bandwidth: &'static str,
    /// What a fault of its kernels ends.
    pub faults: &'static str,
}

impl Division {
    /// All divisions.
    pub const ALL: [Division; 6] = [
        Division::Threads,
        Division::GreenContexts,
        Division::UnitMasks,
        Division::Mps,
        Division::Mig,
        Division::TimeOnly,
    ];

    /// The division by which a device keeps the shares of its clients.
    pub fn of(device: &DeviceInfo) -> Division {
        match (device.kind(), device.lane_units) {
            (_, LaneUnits::None) => Division::TimeOnly,
            ("cuda", _) => Division::GreenContexts,
            ("hip", _) => Division::UnitMasks,
            _ => Division::Threads,
        }
    }

    /// What it guarantees.
    pub const fn guarantees(self) -> Guarantees {
        let of_lane = Guarantees {
            name: "",
            compute_units: "exactly its own",
            memory_bandwidth: "shared",
            faults: "the process of its tenant",
        };
        match self {
            Division::Threads => Guarantees { name: "lanes of the host", ..of_lane },
            Division::GreenContexts => Guarantees { name: "green contexts", ..of_lane },
            Division::UnitMasks => Guarantees { name: "masks of compute units", ..of_lane },
            Division::Mps => Guarantees {
                name: "MPS",
                compute_units: "at most its percentage, any of them",
                memory_bandwidth: "shared",
                faults: "perhaps all clients of the GPU",
            },
            Division::Mig => Guarantees {
                name: "MIG",
                compute_units: "exactly its own",
                memory_bandwidth: "its own",
                faults: "the instance",
            },
            Division::TimeOnly => Guarantees { name: "time only", compute_units: "any of them", ..of_lane },
        }
    }
}

impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Guarantees { name, compute_units, memory_bandwidth, faults } = self.guarantees();
        write!(
            f,
            "{name}: compute units of a client: {compute_units}; memory bandwidth: {memory_bandwidth}; a fault ends: \
             {faults}"
        )
    }
}
