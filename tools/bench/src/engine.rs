//! Starts devices and engines from the common flags.

use crate::compiler;
use crate::device_name::{DeviceName, GpuName};
use crate::devices::{self, DeviceSpec};
use crate::failure::{user_error, users};
use crate::isolation::{GpuArgs, Groups, Isolation};
use crate::output::{counted, parse_bytes, parse_seconds, parse_tenant_memory};
use anyhow::Context;
use atoll_core::placement::{PLACEMENT_DEFAULT, PLACEMENTS, PoolConfig, placement_by_name};
use atoll_core::residency::{RESIDENCY_POLICIES, RESIDENCY_POLICY_DEFAULT};
use atoll_core::{Nanos, POLICIES, POLICY_DEFAULT};
use atoll_device::{Device, cpus};
#[cfg(feature = "cuda")]
use atoll_device_cuda::{CudaConfig, CudaDevice, GpuPart};
use atoll_device_host::HostConfig;
use atoll_engine::{Engine, EngineConfig, MemoryQuotas, SuspensionConfig, Tenant, TenantBytes};
use atoll_executor::{ControlGroups, TenantMemory};
use atoll_fleet::{Fleet, Placing};
#[cfg(feature = "native")]
use clap::Parser;
use clap::builder::PossibleValue;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

/// Flags of commands that run models in their own process.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Device and scheduling")]
pub struct EngineArgs {
    /// Device: host (this machine's CPU cores), or some cores as in host@0-3; cuda, cuda:N or
    /// cuda:UUID (an NVIDIA GPU or a MIG instance); hip or hip:N (an AMD GPU)
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceSpec::HOST)]
    device: DeviceSpec,

    #[command(flatten)]
    flags: DeviceFlags,
}

/// Flags of commands that may start several devices.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Devices and scheduling")]
pub struct FleetArgs {
    /// Device: host (this machine's CPU cores), cuda, cuda:N or cuda:UUID (an NVIDIA GPU or a MIG
    /// instance), hip or hip:N (an AMD GPU). Repeat the flag for several devices, and give each
    /// host device its own CPUs: --device host:0@0-3 --device host:1@4-7. Each device has its own
    /// memory, queues and limits; the following flags apply to each of them
    #[arg(long = "device", value_name = "DEVICE", default_values_t = [DeviceSpec::HOST])]
    devices: Vec<DeviceSpec>,

    /// With several devices: the policy that chooses the device of each request. Functions are
    /// loaded onto all devices, unless they name one; with `home`, each onto one device
    #[arg(long, value_name = "POLICY", default_value = PLACEMENT_DEFAULT, value_parser = placement_names())]
    placement: String,

    /// With --placement exclusive: how long a device stays with a group that has taken it from
    /// another
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_seconds)]
    placement_hysteresis: f64,

    /// Memory of each GPU that is reserved for functions of tenants, for example 8G or 40%. Each tenant
    /// gets a region of it, outside of which its kernels access nothing. With 0, functions of tenants
    /// are refused on GPUs [default: 50% if --config names tenants and --trust-tenants is not given, 0
    /// otherwise]
    #[arg(long, value_name = "BYTES|PERCENT", value_parser = parse_tenant_memory)]
    tenant_memory: Option<TenantMemory>,

    #[command(flatten)]
    flags: DeviceFlags,
}

/// Memory of a GPU that is reserved for tenants by default.
const TENANT_MEMORY_DEFAULT: TenantMemory = TenantMemory::Percent(50);

/// Configuration of each device.
#[derive(Clone, Debug, clap::Args)]
struct DeviceFlags {
    /// Number of compute units: threads of the host device, or a partition of the GPU, possibly
    /// rounded up [default: one per CPU of the device; the whole GPU]
    #[arg(long, value_name = "COUNT")]
    compute_units: Option<NonZeroU32>,

    /// Share the GPU with other processes through NVIDIA MPS, using at most this percentage of its
    /// compute units; starts the MPS control daemon if none is running
    #[arg(
        long,
        value_name = "PERCENT",
        value_parser = clap::value_parser!(u32).range(1..=100),
        conflicts_with = "compute_units"
    )]
    mps: Option<u32>,

    /// Submit up to this many launches of a real-time request to the GPU driver at once, as a CUDA
    /// graph, if the same launches occurred before. Larger values leave more launches on the device
    /// at a preemption
    #[arg(long, value_name = "LAUNCHES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    graph_segment: u32,

    /// How real-time and best-effort requests share the device
    #[arg(long, default_value = POLICY_DEFAULT, value_parser = policy_names())]
    policy: String,

    /// Give best-effort requests a time slice (a twentieth of this time) whenever they made no
    /// progress for this long beside real-time requests, which wait meanwhile [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    best_effort_wait_max: Option<f64>,

    /// Device memory to use, per device, for example 512M or 2G [default: all of it; for host
    /// devices half of the machine's memory, divided among them]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory_limit: Option<u64>,

    /// Overcommit ratio: total constants of all functions may be up to this multiple of device
    /// memory; `off` if all have to fit
    #[arg(long, value_name = "RATIO", default_value = "4", value_parser = parse_overcommit)]
    memory_overcommit: f64,

    /// Which constants are evicted when the device is full
    #[arg(
        long,
        value_name = "POLICY",
        default_value = RESIDENCY_POLICY_DEFAULT,
        value_parser = residency_policy_names()
    )]
    residency_policy: String,

    /// Fail a launch that runs longer than this; on a GPU this ends its process, if it has a
    /// process of its own
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = parse_seconds)]
    time_limit: f64,

    /// Isolation of kernels from this process [default: `process` for `atoll serve`, `none`
    /// otherwise]
    #[arg(long, value_enum)]
    isolation: Option<Isolation>,

    /// Queued requests per model; further ones are refused [default: 64]
    #[arg(long, value_name = "COUNT")]
    queue_capacity: Option<NonZeroUsize>,

    /// Launches that a device queue holds [default: 4, on NVIDIA GPUs 8]. More of them keep a device
    /// busy whose launches are short; a preemption waits for more of them to exit
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64))]
    device_queue_capacity: Option<u32>,
}

type Opened = anyhow::Result<Box<dyn Device>>;

/// Each constant on a device needs a file descriptor.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If the limit cannot be raised, opening files fails later, with an error.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Parser of scheduling policies.
pub fn policy_names() -> clap::builder::PossibleValuesParser {
    POLICIES.iter().map(|policy| PossibleValue::new(policy.name).help(policy.about)).into()
}

/// The value of `--placement` that is not a policy of the pool.
const HOME: &str = "home";

fn placement_names() -> clap::builder::PossibleValuesParser {
    let home = PossibleValue::new(HOME).help("Each function on the device that is emptiest when it is loaded");
    let policies = PLACEMENTS.iter().map(|policy| PossibleValue::new(policy.name).help(policy.about));
    policies.chain([home]).collect::<Vec<_>>().into()
}

fn residency_policy_names() -> clap::builder::PossibleValuesParser {
    RESIDENCY_POLICIES.iter().map(|policy| PossibleValue::new(policy.name).help(policy.about)).into()
}

/// Parses `off`, or a ratio of at least 1.
fn parse_overcommit(text: &str) -> Result<f64, String> {
    match text {
        "off" => Ok(1.0),
        _ => text
            .parse()
            .ok()
            .filter(|ratio: &f64| ratio.is_finite() && *ratio >= 1.0)
            .ok_or_else(|| "expected `off` or a number of at least 1".into()),
    }
}

/// Starts an engine on a device in this process. `compute_units` applies to host devices.
pub fn bench_engine(
    device: DeviceName,
    compute_units: u32,
    policy: &str,
    device_queue_capacity: u32,
) -> anyhow::Result<Engine> {
    let device = bench_device(device, compute_units, device_queue_capacity)?;
    let padding = compiler::padding_service();
    let config = EngineConfig { policy: policy.into(), device_queue_capacity, padding, ..EngineConfig::default() };
    Ok(Engine::start(device, config)?)
}

/// Starts a device in this process. `compute_units` applies to host devices; 0 means one per CPU.
pub fn bench_device(
    device: DeviceName,
    compute_units: u32,
    device_queue_capacity: u32,
) -> anyhow::Result<Box<dyn Device>> {
    raise_descriptor_limit();
    match device {
        DeviceName::Host => {
            let default = HostConfig::default();
            let compute_units = if compute_units == 0 { default.compute_units } else { compute_units };
            Isolation::None.host_device(HostConfig { compute_units, ..default })
        }
        DeviceName::Cuda(gpu) => Isolation::None.gpu(gpu, gpu_alone(device_queue_capacity)),
        DeviceName::Hip(index) => Isolation::None.amd_gpu(index, gpu_alone(device_queue_capacity)),
    }
}

/// A whole GPU in this process, where a kernel cannot be aborted.
fn gpu_alone(queue_capacity: u32) -> GpuArgs {
    GpuArgs {
        memory_bytes: None,
        compute_units: None,
        mps: None,
        queue_capacity: Some(queue_capacity),
        segment: 1,
        tenant_memory: None,
        time_limit: Duration::MAX,
    }
}

/// Starts an engine on a partition of a GPU in this process, with a limit of its memory. The policy
/// treats all requests alike.
#[cfg(feature = "cuda")]
pub fn part_engine(gpu: GpuName, part: Option<GpuPart>, memory_bytes: u64) -> anyhow::Result<Engine> {
    raise_descriptor_limit();
    let config = CudaConfig { gpu: gpu.into(), part, memory_bytes: Some(memory_bytes), ..CudaConfig::default() };
    let device = CudaDevice::start(&config).with_context(|| format!("cannot start a part of cuda:{gpu}"))?;
    Ok(Engine::start(Box::new(device), EngineConfig { policy: "streams".into(), ..EngineConfig::default() })?)
}

impl EngineArgs {
    /// Number of compute units, if given.
    #[cfg(feature = "native")]
    pub fn compute_units(&self) -> Option<NonZeroU32> {
        self.flags.compute_units
    }

    /// The device given by the flag.
    pub fn device_name(&self) -> DeviceName {
        self.device.kind()
    }

    /// Starts the engine for use by this program alone.
    pub fn start(&self) -> anyhow::Result<Engine> {
        self.start_with(MemoryQuotas::default())
    }

    /// Like [`EngineArgs::start`], with a memory quota for the local tenant.
    pub fn start_with_quota(&self, bytes: u64) -> anyhow::Result<Engine> {
        let quota = TenantBytes { all: bytes, ..TenantBytes::UNLIMITED };
        self.start_with(MemoryQuotas { tenants: [(Tenant::default(), quota)].into(), ..MemoryQuotas::default() })
    }

    fn start_with(&self, memory_quotas: MemoryQuotas) -> anyhow::Result<Engine> {
        let mut devices = self.flags.devices(std::slice::from_ref(&self.device), Isolation::None, &None, None)?;
        let device = devices.pop().context("there is one device")?;
        Ok(Engine::start(device, self.flags.config(memory_quotas))?)
    }

    /// Configuration of the host device.
    pub fn host_config(&self) -> HostConfig {
        self.flags.host_config(&self.device, 1)
    }
}

impl FleetArgs {
    /// Reserves memory of GPUs for tenants by default, unless a flag says how much.
    pub fn reserve_for_tenants(&mut self) {
        self.tenant_memory.get_or_insert(TENANT_MEMORY_DEFAULT);
    }

    /// Whether the devices isolate the memory of tenants from each other and from the daemon: the
    /// host device does so with separate processes, an NVIDIA GPU with fences, if memory is reserved
    /// for tenants. For AMD GPUs no fences can be made: the jail of the compiler has no linker.
    pub fn keeps_tenants_apart(&self) -> bool {
        let isolates = |spec: &DeviceSpec| match spec {
            DeviceSpec::Host { .. } => true,
            DeviceSpec::Cuda(_) => self.fences_gpus(),
            DeviceSpec::Hip(_) => false,
        };
        self.flags.isolation != Some(Isolation::None) && self.devices.iter().all(isolates)
    }

    /// Whether kernels of tenants are fenced on NVIDIA GPUs.
    pub fn fences_gpus(&self) -> bool {
        let nothing = [None, Some(TenantMemory::Bytes(0)), Some(TenantMemory::Percent(0))];
        !nothing.contains(&self.tenant_memory)
    }

    /// The kinds of the devices, in order.
    pub fn device_names(&self) -> Vec<DeviceName> {
        self.devices.iter().map(DeviceSpec::kind).collect()
    }

    /// Starts the devices for kernels of other users, with one engine each.
    pub fn start(
        &self,
        memory_quotas: MemoryQuotas,
        suspension: SuspensionConfig,
        groups: Option<Arc<ControlGroups>>,
    ) -> anyhow::Result<Fleet> {
        let devices = self.flags.devices(&self.devices, Isolation::Process, &groups, self.tenant_memory)?;
        let config = EngineConfig { suspension, ..self.flags.config(memory_quotas) };
        Ok(Fleet::start(devices, &config, self.placing())?)
    }

    fn placing(&self) -> Placing {
        let Some(policy) = placement_by_name(&self.placement) else { return Placing::Home };
        let mut pool = PoolConfig::new(policy);
        pool.options.steal.hysteresis = Nanos((self.placement_hysteresis * 1e9) as u64);
        Placing::Pool(pool)
    }
}

/// Starts devices in this process under a policy of the pool, with the default of every other
/// flag.
#[cfg(feature = "native")]
pub(crate) fn start_pool(
    devices: &[DeviceSpec],
    compute_units: Option<NonZeroU32>,
    pool: PoolConfig,
) -> anyhow::Result<Fleet> {
    #[derive(clap::Parser)]
    struct Defaults {
        #[command(flatten)]
        flags: DeviceFlags,
    }
    let flags = DeviceFlags { compute_units, ..Defaults::try_parse_from(["atoll"])?.flags };
    let devices = flags.devices(devices, Isolation::None, &None, None)?;
    Ok(Fleet::start(devices, &flags.config(MemoryQuotas::default()), Placing::Pool(pool))?)
}

impl DeviceFlags {
    /// Starts all devices, or none.
    fn devices(
        &self,
        specs: &[DeviceSpec],
        default: Isolation,
        groups: &Groups,
        tenant_memory: Option<TenantMemory>,
    ) -> anyhow::Result<Vec<Box<dyn Device>>> {
        raise_descriptor_limit();
        devices::check(specs, &cpus::allowed()).map_err(users)?;
        self.check(specs, default)?;
        let hosts = specs.iter().filter(|spec| spec.is_host()).count() as u64;
        let mut devices = Vec::with_capacity(specs.len());
        for spec in specs {
            let device = self.device(spec, default, (hosts, groups), tenant_memory)?;
            let info = device.info();
            tracing::info!(
                device = info.name,
                compute_units = info.compute_units,
                memory_bytes = info.memory_bytes,
                preempt_level = ?info.preempt_level,
                policy = self.policy,
                "starting"
            );
            devices.push(device);
        }
        Ok(devices)
    }

    /// Refuses flags that do not apply to a device.
    fn check(&self, specs: &[DeviceSpec], default: Isolation) -> anyhow::Result<()> {
        let has_gpu = specs.iter().any(|spec| matches!(spec, DeviceSpec::Cuda(_)));
        if self.mps.is_some() {
            self.check_mps(specs, has_gpu, default)?;
        }
        if self.graph_segment > 1 && !has_gpu {
            return Err(user_error("--graph-segment applies to NVIDIA GPUs only"));
        }
        for spec in specs {
            if let (DeviceSpec::Host { cpus: Some(cpus), .. }, Some(units)) = (spec, self.compute_units)
                && units.get() as usize > cpus.len()
            {
                let own = counted(cpus.len(), "CPU");
                return Err(user_error(format!(
                    "--compute-units {units} is more than {} has CPUs: {own} of its own",
                    spec.name()
                )));
            }
        }
        Ok(())
    }

    /// Refuses `--mps` for devices that no MPS control daemon can share.
    fn check_mps(&self, specs: &[DeviceSpec], has_gpu: bool, default: Isolation) -> anyhow::Result<()> {
        if !has_gpu {
            return Err(user_error(
                "--mps applies to NVIDIA GPUs only; set the compute units of the host device with --compute-units",
            ));
        }
        if self.gpu_isolation(default) == Isolation::None {
            return Err(user_error("--mps needs --isolation process, since MPS shares a GPU among processes"));
        }
        if specs.iter().any(|spec| matches!(spec, DeviceSpec::Cuda(GpuName::Mig(_)))) {
            return Err(user_error(
                "--mps applies to whole GPUs only: each MIG instance would need an MPS control daemon of its own",
            ));
        }
        Ok(())
    }

    fn config(&self, memory_quotas: MemoryQuotas) -> EngineConfig {
        let default = EngineConfig::default();
        EngineConfig {
            policy: self.policy.clone(),
            queue_capacity: self.queue_capacity.map_or(default.queue_capacity, NonZeroUsize::get),
            best_effort_wait_max: self.best_effort_wait_max.map(Duration::from_secs_f64),
            memory_limit_bytes: self.memory_limit,
            memory_overcommit: self.memory_overcommit,
            memory_quotas,
            residency_policy: self.residency_policy.clone(),
            padding: compiler::padding_service(),
            ..default
        }
    }

    /// MPS shares of a GPU belong to processes.
    fn gpu_isolation(&self, default: Isolation) -> Isolation {
        self.isolation.unwrap_or(if self.mps.is_some() { Isolation::Process } else { default })
    }

    fn device(
        &self,
        spec: &DeviceSpec,
        default: Isolation,
        (hosts, groups): (u64, &Groups),
        tenant_memory: Option<TenantMemory>,
    ) -> Opened {
        let isolation = self.gpu_isolation(default);
        match *spec {
            DeviceSpec::Host { .. } => {
                let isolation = self.isolation.unwrap_or(default);
                isolation.host_device_in(self.host_config(spec, hosts), groups.clone())
            }
            DeviceSpec::Cuda(gpu) => isolation.gpu(gpu, self.gpu_args(default, tenant_memory)),
            DeviceSpec::Hip(index) => isolation.amd_gpu(index, self.gpu_args(default, tenant_memory)),
        }
    }

    /// Configuration of a GPU. In a daemon, warns of faults.
    fn gpu_args(&self, default: Isolation, tenant_memory: Option<TenantMemory>) -> GpuArgs {
        if default == Isolation::Process {
            let until = if self.gpu_isolation(default) == Isolation::Process {
                "until its process is replaced"
            } else {
                "until the daemon is started again"
            };
            tracing::warn!("kernels of the daemon's models are not fenced; one that faults stops all others {until}");
        }
        GpuArgs {
            memory_bytes: self.memory_limit,
            compute_units: self.compute_units.map(NonZeroU32::get),
            mps: self.mps,
            queue_capacity: self.device_queue_capacity,
            segment: self.graph_segment,
            tenant_memory,
            time_limit: Duration::from_secs_f64(self.time_limit),
        }
    }

    /// Configuration of one of `hosts` host devices, which share the machine's memory.
    fn host_config(&self, spec: &DeviceSpec, hosts: u64) -> HostConfig {
        let default = HostConfig::default();
        let cpus = match spec {
            DeviceSpec::Host { cpus: Some(cpus), .. } => Some(cpus.clone()),
            _ => None,
        };
        let compute_units = cpus.as_ref().map_or(default.compute_units, |cpus| cpus.len() as u32);
        HostConfig {
            name: if spec.is_host() { spec.name() } else { default.name },
            cpus: cpus.unwrap_or(default.cpus),
            compute_units: self.compute_units.map_or(compute_units, NonZeroU32::get),
            // Reserving untouched memory costs nothing, but the device should report the user's
            // limit.
            memory_bytes: self.memory_limit.map_or(default.memory_bytes / hosts.max(1), |limit| limit.max(1)),
            constants_bytes: default.constants_bytes / hosts.max(1),
            queue_capacity: self.device_queue_capacity.unwrap_or(default.queue_capacity),
            time_limit: Duration::from_secs_f64(self.time_limit),
            ..default
        }
    }
}
