//! The size of a lease, from flags, from what a container was given, and from annotations of its
//! pod.

use crate::failure::user_error;
use anyhow::{Context, Result, ensure};

/// Part of a percent that is lost when fractions are multiplied.
const ROUNDING: f64 = 1e-6;

/// Figures of a lease as they were asked for. What is absent follows from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Asked {
    /// Compute units in percent.
    pub(super) sm_partition: Option<f64>,
    /// The fraction of the time whenever there is work.
    pub(super) quota_request: Option<f64>,
    /// The fraction of the time at most.
    pub(super) quota_limit: Option<f64>,
    /// Device memory in bytes.
    pub(super) gpu_mem: Option<u64>,
}

/// What a container was given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Given {
    /// Compute units times time, in percent of a device.
    pub(super) sm_pct: Option<f64>,
    /// Device memory in bytes.
    pub(super) gpu_mem: Option<u64>,
}

/// Figures of a lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    pub(super) sm_partition: f64,
    pub(super) quota_request: f64,
    pub(super) quota_limit: f64,
    pub(super) gpu_mem: u64,
}

impl Asked {
    /// These figures, and where they are absent those of `other`.
    pub(super) fn or(self, other: Asked) -> Asked {
        Asked {
            sm_partition: self.sm_partition.or(other.sm_partition),
            quota_request: self.quota_request.or(other.quota_request),
            quota_limit: self.quota_limit.or(other.quota_limit),
            gpu_mem: self.gpu_mem.or(other.gpu_mem),
        }
    }

    /// The figures of the lease. The daemon checks their ranges.
    ///
    /// # Errors
    /// Fails if they are more than the container was given, or if they do not say how large the
    /// lease is.
    pub(super) fn figures(self, given: Given) -> Result<Figures> {
        let quota_limit = self.quota_limit.unwrap_or(1.0);
        let (sm_partition, quota_request) = match (given.sm_pct, self.sm_partition, self.quota_request) {
            (None, partition, request) => {
                let request = request.context("no --quota-request says which fraction of the time the lease has");
                (partition.unwrap_or(100.0), request.map_err(user)?)
            }
            (Some(area), None, None) => {
                ensure_user(area <= 100.0, || {
                    format!("the container has {area} % of a device, and a lease is of one device: 100 % at most")
                })?;
                // All compute units that it paid for, for the time that the limit leaves.
                let request = quota_limit.min(1.0);
                ((area / request).min(100.0), request)
            }
            (Some(area), Some(partition), None) => (partition, (area / partition).min(quota_limit)),
            (Some(area), None, Some(request)) => ((area / request).min(100.0), request),
            (Some(area), Some(partition), Some(request)) => {
                ensure_user(partition * request <= area + ROUNDING, || {
                    format!(
                        "{partition} % of the compute units for {request} of the time are {} % of a device, and the \
                        container has {area} %",
                        partition * request
                    )
                })?;
                (partition, request)
            }
        };
        let gpu_mem = match (self.gpu_mem, given.gpu_mem) {
            (Some(asked), Some(given)) if asked > given => {
                return Err(user_error(format!("{asked} bytes of device memory exceed the {given} of the container")));
            }
            (asked, given) => asked.or(given).context("no --gpu-mem says how much device memory the lease has"),
        };
        Ok(Figures { sm_partition, quota_request, quota_limit, gpu_mem: gpu_mem.map_err(user)? })
    }
}

fn user(error: anyhow::Error) -> anyhow::Error {
    crate::failure::users(error)
}

fn ensure_user(holds: bool, message: impl FnOnce() -> String) -> Result<()> {
    let check = || {
        ensure!(holds, message());
        Ok(())
    };
    check().map_err(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(area: Option<f64>, partition: Option<f64>, request: Option<f64>, limit: Option<f64>) -> Result<Figures> {
        let asked = Asked { sm_partition: partition, quota_request: request, quota_limit: limit, gpu_mem: Some(1) };
        asked.figures(Given { sm_pct: area, gpu_mem: Some(2) })
    }

    fn pair(figures: Result<Figures>) -> (f64, f64) {
        let figures = figures.unwrap();
        (figures.sm_partition, figures.quota_request)
    }

    #[test]
    fn units_of_a_container_are_a_partition_times_a_quota() {
        assert_eq!(pair(figures(None, None, Some(0.4), None)), (100.0, 0.4));
        assert_eq!(pair(figures(None, Some(30.0), Some(0.4), None)), (30.0, 0.4));
        assert_eq!(pair(figures(Some(30.0), None, None, None)), (30.0, 1.0));
        assert_eq!(pair(figures(Some(30.0), None, None, Some(0.5))), (60.0, 0.5));
        assert_eq!(pair(figures(Some(80.0), None, None, Some(0.5))), (100.0, 0.5));
        assert_eq!(pair(figures(Some(15.0), Some(30.0), None, None)), (30.0, 0.5));
        assert_eq!(pair(figures(Some(30.0), Some(20.0), None, None)), (20.0, 1.0));
        assert_eq!(pair(figures(Some(15.0), None, Some(0.5), None)), (30.0, 0.5));
        assert_eq!(pair(figures(Some(60.0), None, Some(0.5), None)), (100.0, 0.5));
        assert_eq!(pair(figures(Some(15.0), Some(30.0), Some(0.5), None)), (30.0, 0.5));
        assert_eq!(pair(figures(Some(3.0), Some(30.0), Some(0.1), None)), (30.0, 0.1));
    }

    #[test]
    fn more_than_the_container_has_is_refused() {
        let error = figures(Some(15.0), Some(40.0), Some(0.5), None).unwrap_err().to_string();
        assert!(error.contains("40 % of the compute units") && error.contains("has 15 %"), "{error}");
        let error = figures(Some(130.0), None, None, None).unwrap_err().to_string();
        assert!(error.contains("130 % of a device"), "{error}");
        assert!(figures(None, None, None, None).unwrap_err().to_string().contains("--quota-request"));
        let asked = Asked { quota_request: Some(0.5), ..Asked::default() };
        assert!(asked.figures(Given::default()).unwrap_err().to_string().contains("--gpu-mem"));
        let error = Asked { gpu_mem: Some(3), ..asked }.figures(Given { sm_pct: None, gpu_mem: Some(2) }).unwrap_err();
        assert!(error.to_string().contains("exceed the 2 of the container"), "{error}");
        assert_eq!(asked.figures(Given { sm_pct: None, gpu_mem: Some(2) }).unwrap().gpu_mem, 2);
    }
}
