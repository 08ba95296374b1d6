//! The size of a lease, from what was asked for and from what a container was given.

/// Part of a percent that is lost when fractions are multiplied.
const ROUNDING: f64 = 1e-6;

/// Figures of a lease as they were asked for. What is absent follows from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AskedShare {
    /// Compute units in percent.
    pub sm_partition: Option<f64>,
    /// The fraction of the time whenever there is work.
    pub quota_request: Option<f64>,
    /// The fraction of the time at most.
    pub quota_limit: Option<f64>,
    /// Device memory in bytes.
    pub gpu_mem: Option<u64>,
}

/// What a container was given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GivenShare {
    /// Compute units times time, in percent of a device.
    pub sm_pct: Option<f64>,
    /// Device memory in bytes.
    pub gpu_mem: Option<u64>,
}

/// Figures of a lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareFigures {
    /// Compute units in percent.
    pub sm_partition: f64,
    /// The fraction of the time whenever there is work.
    pub quota_request: f64,
    /// The fraction of the time at most.
    pub quota_limit: f64,
    /// Device memory in bytes.
    pub gpu_mem: u64,
}

/// Why figures do not say how large a lease is.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FiguresError {
    /// Neither a quota was asked for nor a share given.
    #[error("no --quota-request says which fraction of the time the lease has")]
    NoQuota,
    /// Memory was neither asked for nor given.
    #[error("no --gpu-mem says how much device memory the lease has")]
    NoMemory,
    /// The container has shares of several devices.
    #[error("the container has {0} % of a device, and a lease is of one device: 100 % at most")]
    SeveralDevices(f64),
    /// More was asked for than the container has.
    #[error(
        "{partition} % of the compute units for {request} of the time are {} % of a device, and the container has \
         {given} %",
        .partition * .request
    )]
    Share {
        /// Compute units in percent.
        partition: f64,
        /// The fraction of the time.
        request: f64,
        /// What the container has, in percent of a device.
        given: f64,
    },
    /// More memory was asked for than the container has.
    #[error("{asked} bytes of device memory exceed the {given} of the container")]
    Memory {
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes that the container has.
        given: u64,
    },
}

impl AskedShare {
    /// These figures, and where they are absent those of `other`.
    #[must_use]
    pub fn or(self, other: AskedShare) -> AskedShare {
        AskedShare {
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
    pub fn figures(self, given: GivenShare) -> Result<ShareFigures, FiguresError> {
        let quota_limit = self.quota_limit.unwrap_or(1.0);
        let (sm_partition, quota_request) = match (given.sm_pct, self.sm_partition, self.quota_request) {
            (None, partition, request) => (partition.unwrap_or(100.0), request.ok_or(FiguresError::NoQuota)?),
            (Some(area), None, None) if area > 100.0 => return Err(FiguresError::SeveralDevices(area)),
            (Some(area), None, None) => {
                // All compute units that it paid for, for the time that the limit leaves.
                let request = quota_limit.min(1.0);
                ((area / request).min(100.0), request)
            }
            (Some(area), Some(partition), None) => (partition, (area / partition).min(quota_limit)),
            (Some(area), None, Some(request)) => ((area / request).min(100.0), request),
            (Some(area), Some(partition), Some(request)) if partition * request > area + ROUNDING => {
                return Err(FiguresError::Share { partition, request, given: area });
            }
            (Some(_), Some(partition), Some(request)) => (partition, request),
        };
        let gpu_mem = match (self.gpu_mem, given.gpu_mem) {
            (Some(asked), Some(given)) if asked > given => return Err(FiguresError::Memory { asked, given }),
            (asked, given) => asked.or(given).ok_or(FiguresError::NoMemory)?,
        };
        Ok(ShareFigures { sm_partition, quota_request, quota_limit, gpu_mem })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(
        area: Option<f64>,
        partition: Option<f64>,
        request: Option<f64>,
        limit: Option<f64>,
    ) -> Result<ShareFigures, FiguresError> {
        let asked =
            AskedShare { sm_partition: partition, quota_request: request, quota_limit: limit, gpu_mem: Some(1) };
        asked.figures(GivenShare { sm_pct: area, gpu_mem: Some(2) })
    }

    fn pair(figures: Result<ShareFigures, FiguresError>) -> (f64, f64) {
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
        let asked = AskedShare { quota_request: Some(0.5), ..AskedShare::default() };
        assert!(asked.figures(GivenShare::default()).unwrap_err().to_string().contains("--gpu-mem"));
        let error = AskedShare { gpu_mem: Some(3), ..asked }
            .figures(GivenShare { sm_pct: None, gpu_mem: Some(2) })
            .unwrap_err();
        assert!(error.to_string().contains("exceed the 2 of the container"), "{error}");
        assert_eq!(asked.figures(GivenShare { sm_pct: None, gpu_mem: Some(2) }).unwrap().gpu_mem, 2);
    }
}
