//! Regions of tenants in the memory of a GPU.

use super::config;
use super::executor::{Gpu, executor};
use super::suite::rig::{Kernel, Wanted, facts};
use atoll_core::DeviceOffset;
use atoll_device::{Constants, Device, DeviceError, Domains, LaunchStatus, Memory, ModuleId, ModuleImage, Modules};
use atoll_executor::{ExecutorConfig, ExecutorPool, TenantMemory};

const MIB: u64 = 1 << 20;

/// A GPU with 64 MiB of memory, of which half is reserved for tenants.
fn gpu() -> Gpu {
    let reserved = Some(TenantMemory::Percent(50));
    let config = ExecutorConfig { tenant_memory: reserved, ..executor(config(Wanted::default())) };
    Gpu { pool: ExecutorPool::new(config).expect("a pool"), module: ModuleId(0), launches: 0 }
}

fn load(gpu: &mut Gpu, domain: &str) -> Result<ModuleId, DeviceError> {
    let (target, kernels) = ("nvidia-sm_75", facts());
    let image = ModuleImage { domain, target, code: super::KERNELS.as_bytes(), ptx: None, kernels: &kernels };
    gpu.pool.load_module(image)
}

/// How a launch ends that counts itself at an offset.
fn count(gpu: &mut Gpu, module: ModuleId, at: u64) -> LaunchStatus {
    gpu.module = module;
    gpu.submit(Kernel::Spin, at, [0; 2]);
    gpu.wait().status
}

fn read(gpu: &mut Gpu, at: DeviceOffset) -> [u8; 4] {
    let mut bytes = [0; 4];
    gpu.pool.read(at, &mut bytes).expect("memory");
    bytes
}

#[test]
fn launches_of_a_tenant_name_its_region_only() {
    let mut gpu = gpu();
    assert_eq!(gpu.pool.info().memory_bytes, 32 * MIB);
    let modules = ["a", "b"].map(|name| load(&mut gpu, name).expect("the kernels"));
    let bases = ["a", "b"].map(|name| gpu.pool.domain(name).expect("a region"));
    assert_ne!(bases[0], bases[1]);
    for (name, base) in ["a", "b"].into_iter().zip(bases) {
        gpu.pool.place_part(name, DeviceOffset(0), 4096).expect("room");
        gpu.pool.fill(base, 0, 4096).expect("memory");
    }
    assert_eq!(count(&mut gpu, modules[0], bases[0].0), LaunchStatus::Complete);
    assert_eq!(bases.map(|base| read(&mut gpu, base)), [[1, 0, 0, 0], [0; 4]]);
    assert_eq!(count(&mut gpu, modules[1], bases[0].0), LaunchStatus::Failed, "memory of the other");
    assert_eq!(count(&mut gpu, modules[1], bases[1].0 + 8192), LaunchStatus::Failed, "no part of its memory");
    assert_eq!(count(&mut gpu, modules[1], 4096), LaunchStatus::Failed, "memory that all share");
    let addresses = bases.map(|base| gpu.pool.kernel_address(base).expect("an address"));
    let mask = gpu.pool.memory_mask("a").expect("a region");
    assert_eq!((mask + 1, gpu.pool.memory_mask("local")), (4 * MIB, None));
    assert!(addresses[1].abs_diff(addresses[0]) > mask, "{addresses:x?}");
}

#[test]
fn a_tenant_reads_copies_of_the_constants_that_it_was_shown() {
    let mut gpu = gpu();
    let modules = ["a", "b"].map(|name| load(&mut gpu, name).expect("the kernels"));
    let constant = DeviceOffset(8192);
    gpu.pool.reserve_constant(constant, 256).expect("memory");
    gpu.pool.write(constant, &[5; 256]).expect("memory");
    gpu.pool.show_constants("a", &[constant]);
    let start = gpu.pool.memory_start("a").expect("a region");
    assert_eq!(read(&mut gpu, start), [5; 4], "it was copied");
    gpu.pool.write(DeviceOffset(constant.0 + 4), &[7; 4]).expect("memory");
    assert_eq!(read(&mut gpu, DeviceOffset(start.0 + 4)), [7; 4], "what is written later is copied, too");
    assert_eq!(count(&mut gpu, modules[0], constant.0), LaunchStatus::Complete);
    assert_eq!([start, constant].map(|at| read(&mut gpu, at)), [[6, 5, 5, 5], [5; 4]], "a copy of its own");
    assert_eq!(count(&mut gpu, modules[1], constant.0), LaunchStatus::Failed, "it was not shown to b");
    gpu.pool.hide_constants("a", &[constant]);
    assert_eq!(count(&mut gpu, modules[0], constant.0), LaunchStatus::Failed);
}

#[test]
fn a_region_is_cleared_for_the_next_tenant() {
    let mut gpu = gpu();
    for name in ["a", "b"] {
        gpu.pool.bound_memory(name, 24 * MIB);
    }
    let module = load(&mut gpu, "a").expect("the kernels");
    gpu.pool.place_part("a", DeviceOffset(4096), 256).expect("room");
    let base = gpu.pool.domain("a").expect("a region");
    gpu.pool.write(DeviceOffset(base.0 + 4096), &[9; 256]).expect("memory");
    gpu.pool.bound_memory("c", 30 * MIB);
    let refused = load(&mut gpu, "c").expect_err("it is too large").to_string();
    assert!(refused.contains("no region of 64 MiB is free for the memory of tenant `c`"), "{refused}");
    gpu.pool.unload_module(module);
    gpu.pool.remove_part("a", DeviceOffset(4096));
    assert!(gpu.pool.write(DeviceOffset(base.0 + 4096), &[1]).is_err(), "it has no memory any more");
    load(&mut gpu, "b").expect("the kernels");
    let start = gpu.pool.memory_start("b").expect("a region");
    assert_eq!(read(&mut gpu, start), [0; 4]);
}
