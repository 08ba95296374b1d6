//! Functions of tenants on a GPU: each tenant has a region of its memory, and a kernel that leaves the
//! region fails its own request alone. The GPU is the stand-in driver.

use crate::control::refusal;
use crate::cuda::environment;
use crate::executors::children;
use crate::functions::manifest;
use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_client::{Call, Class, Client, DataType, Deploy, RefusalKind, Tensor};
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_tests::chaos::grind;
use atoll_tests::stand_in;
use std::path::{Path, PathBuf};

/// Every word of the victim's constant.
const SECRET: u32 = 0x5ec1_2e75;
const SECRET_WORDS: usize = 16 << 10;

/// Every word of the intruder's constant.
const OWN: u32 = 0x0a11_0c8d;

/// Where an access was that leaves the region.
const OUTSIDE: &str = "access outside the memory of its tenant";

/// Modes of `tests/functions/prowl.ptx`.
#[derive(Clone, Copy, Debug)]
enum Prowl {
    ReadConstants,
    WriteConstants,
    ReadMemory,
    WriteMemory,
    Tell,
    ReadBeforeBarrier,
    MisalignedShared,
    Trap,
}

/// A daemon on an NVIDIA GPU with 256 MiB of memory, and `affine` as a bundle for it.
struct Gpu {
    folder: tempfile::TempDir,
    daemon: Daemon,
}

impl Gpu {
    fn start(options: &[&str], config: &str) -> Result<Gpu> {
        let folder = tempfile::tempdir()?;
        let repository = folder.path().join("repository");
        std::fs::create_dir(&repository)?;
        pack_for_gpu(&manifest("affine"), &folder.path().join("affine.kg"))?;
        stand_in::install(folder.path())?;
        std::fs::write(folder.path().join("atoll.toml"), config)?;
        let config = folder.path().join("atoll.toml").display().to_string();
        let all = ["--device", "cuda", "--memory-limit", "256M", "--config", config.as_str()];
        let environment = environment(folder.path(), "");
        let daemon = Daemon::start_in(&repository, folder.path(), &[&all[..], options].concat(), &environment)?;
        Ok(Gpu { folder, daemon })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn client_of(&self, tenant: &str) -> Result<Client> {
        Ok(Client::connect_as(&self.path("atoll.sock"), Some(tenant.parse()?))?)
    }

    /// Packs a function of `tests/functions` for GPUs, with these words as its constant `file`.
    fn pack(&self, function: &str, file: &str, constant: &[u32]) -> Result<PathBuf> {
        let folder = self.path(&format!("{function}.d"));
        if !folder.exists() {
            std::fs::create_dir(&folder)?;
            let bytes: Vec<u8> = constant.iter().flat_map(|word| word.to_le_bytes()).collect();
            std::fs::write(folder.join(file), bytes)?;
            for extension in ["toml", "ptx"] {
                let source = manifest(function).with_extension(extension);
                std::fs::copy(source, folder.join(function).with_extension(extension))?;
            }
            pack_for_gpu(&folder.join(function).with_extension("toml"), &folder.join("function.kg"))?;
        }
        Ok(folder.join("function.kg"))
    }

    fn vault(&self) -> Result<PathBuf> {
        self.pack("vault", "secret.bin", &[SECRET; SECRET_WORDS])
    }

    fn prowl(&self) -> Result<PathBuf> {
        self.pack("prowl", "own.bin", &[OWN; 1024])
    }

    fn faulty(&self) -> Result<PathBuf> {
        self.pack("faulty", "unused.bin", &[])
    }

    fn executors(&self) -> Result<Vec<i32>> {
        children(self.daemon.process().id() as i32)
    }
}

pub(crate) fn pack_for_gpu(manifest: &Path, output: &Path) -> Result<()> {
    let options = CompileOptions { targets: vec![Target::NVIDIA], ..CompileOptions::default() };
    Ok(pack(manifest, output, &options, &Silent).map(drop)?)
}

fn named(name: &str) -> Deploy {
    Deploy { name: Some(name.into()), ..Deploy::default() }
}

fn u32s(values: &[u32]) -> Tensor {
    let bytes = values.iter().flat_map(|word| word.to_le_bytes()).collect();
    Tensor { datatype: DataType::Uint32, shape: vec![values.len() as i64], bytes }
}

fn words(tensor: &Tensor) -> Vec<u32> {
    tensor.bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// The victim's regular work, with a known result.
fn vault(client: &mut Client, salt: u32) -> Result<()> {
    let x: Vec<u32> = (0..SECRET_WORDS as u32).map(|i| i.wrapping_mul(salt)).collect();
    let answer = client.invoke(Call::of("vault").input("x", u32s(&x)))?;
    let right: Vec<u32> = x.into_iter().map(|x| x ^ SECRET).collect();
    ensure!(words(answer.tensor("y")?) == right, "the victim's result is wrong");
    Ok(())
}

fn affine(client: &mut Client, function: &str) -> Result<()> {
    let [x, b] = [2.0, 1.0].map(|value| Tensor::f32(&[5], &[value; 5]));
    let answer = client.invoke(Call::of(function).input("x", x).input("b", b))?;
    ensure!(answer.tensor("y")?.to_f32() == [7.0; 5], "{function} computes something else");
    Ok(())
}

/// The words that `prowl` returns, or why it failed.
fn prowl(client: &mut Client, how: Prowl, distance: i64) -> Result<Result<Vec<u32>, String>> {
    let bytes = [how as i64, distance].iter().flat_map(|word| word.to_le_bytes()).collect();
    let how = Tensor { datatype: DataType::Uint64, shape: vec![2], bytes };
    match client.invoke(Call::of("prowl").input("how", how)) {
        Ok(answer) => Ok(Ok(words(answer.tensor("out")?))),
        refused => Ok(Err(refusal(refused)?.1)),
    }
}

/// How `faulty` ends in one of its modes.
fn faulty(client: &mut Client, mode: u32) -> Result<String> {
    Ok(refusal(client.invoke(Call::of("faulty").input("mode", u32s(&[mode]))))?.1)
}

#[test]
fn a_kernel_that_leaves_its_region_fails_alone() -> Result<()> {
    let gpu = Gpu::start(&[], "[tenant.victim]\n[tenant.intruder]\n")?;
    let mut victim = gpu.client_of("victim")?;
    let mut intruder = gpu.client_of("intruder")?;
    let mut own = Client::connect(&gpu.path("atoll.sock"))?;
    victim.deploy(&gpu.vault()?, &named("vault"))?;
    victim.deploy(&gpu.path("affine.kg"), &named("line"))?;
    own.deploy(&gpu.path("affine.kg"), &named("own"))?;
    intruder.deploy(&gpu.prowl()?, &named("prowl"))?;
    intruder.deploy(&gpu.faulty()?, &named("faulty"))?;
    let executors = gpu.executors()?;
    let mut salt = 0;
    let mut others = || -> Result<()> {
        salt += 1;
        vault(&mut victim, salt)?;
        affine(&mut victim, "line")?;
        affine(&mut own, "own")
    };
    others()?;
    for (mode, cause) in [(1, OUTSIDE), (2, "misaligned access"), (3, OUTSIDE), (4, "it executed `trap`")] {
        let said = faulty(&mut intruder, mode)?;
        ensure!(said.contains("kernel 'faulty' faulted: ") && said.contains(cause), "mode {mode}: {said}");
        others()?;
    }
    // The functions of the tenant go on as well.
    let read = prowl(&mut intruder, Prowl::ReadConstants, 0)?.map_err(anyhow::Error::msg)?;
    ensure!(read == [OWN; 1024], "it may read its own");
    for (how, cause) in [(Prowl::ReadBeforeBarrier, OUTSIDE), (Prowl::Trap, "it executed `trap`")] {
        let said = prowl(&mut intruder, how, 1 << 40)?.err().context("it answered")?;
        ensure!(said.contains(cause), "{how:?}: {said}");
        others()?;
    }
    // A misaligned access to memory of its own block is made where it would be aligned.
    let shared = prowl(&mut intruder, Prowl::MisalignedShared, 0)?.map_err(anyhow::Error::msg)?;
    ensure!(shared == (0..1024).collect::<Vec<u32>>(), "{:?}", &shared[..8]);
    ensure!(gpu.executors()? == executors, "the process of the GPU was replaced");
    Ok(())
}

#[test]
fn no_tenant_reads_or_writes_memory_of_another_on_a_gpu() -> Result<()> {
    let gpu = Gpu::start(&[], "[tenant.victim]\n[tenant.intruder]\n")?;
    let (mut victim, mut intruder) = (gpu.client_of("victim")?, gpu.client_of("intruder")?);
    victim.deploy(&gpu.vault()?, &named("vault"))?;
    intruder.deploy(&gpu.prowl()?, &named("prowl"))?;
    vault(&mut victim, 1)?;
    let told = prowl(&mut intruder, Prowl::Tell, 0)?.map_err(anyhow::Error::msg)?;
    let [own, out] = [0, 2].map(|at| u64::from(told[at]) | u64::from(told[at + 1]) << 32);
    ensure!(own.abs_diff(out) < 16 << 20, "the constant is a copy in its region: {own:#x}, {out:#x}");
    // All of the GPU's memory is within 256 MiB.
    let mut inside = 0;
    for (index, distance) in (-256..256_i64).map(|step| step * (1 << 20) + 4096).enumerate().step_by(9) {
        let (read, write) = match index % 2 {
            0 => (Prowl::ReadConstants, Prowl::WriteConstants),
            _ => (Prowl::ReadMemory, Prowl::WriteMemory),
        };
        match prowl(&mut intruder, read, distance)? {
            Ok(page) => {
                inside += 1;
                ensure!(!page.contains(&SECRET), "{distance} bytes away");
            }
            Err(said) => {
                ensure!(said.contains(OUTSIDE), "{distance} bytes away: {said}");
                let written = prowl(&mut intruder, write, distance)?;
                ensure!(written.is_err_and(|said| said.contains(OUTSIDE)), "written {distance} bytes away");
            }
        }
    }
    ensure!((1..=8).contains(&inside), "{inside} of the places are in its region of 16 MiB");
    // A distance at which the addresses wrap around.
    for distance in [i64::MIN, i64::MAX - 4095, -(own as i64), 1 << 46] {
        let said = prowl(&mut intruder, Prowl::ReadConstants, distance)?.err().context("it answered")?;
        ensure!(said.contains(OUTSIDE) || said.contains("misaligned"), "{distance}: {said}");
    }
    vault(&mut victim, 7)
}

#[test]
fn a_region_is_cleared_before_another_tenant_gets_it() -> Result<()> {
    let config = "[tenant.a]\ndevice_bytes = \"3MiB\"\n[tenant.b]\ndevice_bytes = \"3MiB\"\n";
    let gpu = Gpu::start(&["--tenant-memory", "4M"], config)?;
    let (mut a, mut b) = (gpu.client_of("a")?, gpu.client_of("b")?);
    a.deploy(&gpu.vault()?, &named("vault"))?;
    vault(&mut a, 3)?;
    let (kind, said) = refusal(b.deploy(&gpu.prowl()?, &named("prowl")))?;
    ensure!(
        said.contains("no region of 4 MiB is free for the memory of tenant `b`") && said.contains("--tenant-memory"),
        "{kind:?}: {said}"
    );
    a.remove_function("vault")?;
    b.deploy(&gpu.prowl()?, &named("prowl"))?;
    let mut places = 0;
    for distance in (0..1024_i64).map(|page| (page - 512) * 4096).step_by(3) {
        if let Ok(page) = prowl(&mut b, Prowl::ReadConstants, distance)? {
            places += 1;
            ensure!(!page.contains(&SECRET), "{distance} bytes away");
        }
    }
    ensure!(places > 100, "{places} pages of 1024");
    Ok(())
}

#[test]
fn fenced_functions_are_preempted_and_go_on() -> Result<()> {
    let gpu = Gpu::start(&[], "[tenant.urgent]\n[tenant.slow]\n")?;
    let (mut urgent, mut slow) = (gpu.client_of("urgent")?, gpu.client_of("slow")?);
    urgent.deploy(&gpu.path("affine.kg"), &Deploy { class: Some(Class::RealTime), ..named("line") })?;
    let table: Vec<u32> = grind::bytes(&grind::table(1)).as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    slow.deploy(&gpu.pack("grind", "c.bin", &table)?, &named("grind"))?;
    let x = [7; 4096];
    let right = grind::bytes(&grind::grind(&x, &grind::table(1), 20_000));
    for _ in 0..20 {
        let done = std::thread::scope(|scope| -> Result<atoll_client::Answer> {
            let call = Call::of("grind").input("x", u32s(&x)).input("times", u32s(&[20_000]));
            let running = scope.spawn(|| slow.invoke(call));
            while !running.is_finished() {
                affine(&mut urgent, "line")?;
            }
            Ok(running.join().expect("no panic")?)
        })?;
        ensure!(done.tensor("y")?.bytes == right, "the result of a preempted function is wrong");
        if done.preemptions > 0 {
            return Ok(());
        }
    }
    anyhow::bail!("nothing was preempted")
}

#[test]
fn what_the_fence_of_gpus_does_not_know_is_refused() -> Result<()> {
    let gpu = Gpu::start(&[], "[tenant.guest]\n")?;
    let bundle = gpu.pack("reach", "own.bin", &[OWN; 1024])?;
    let (_, said) = refusal(gpu.client_of("guest")?.deploy(&bundle, &named("reach")))?;
    ensure!(said.contains("discard.global.L2") && said.contains("cannot be fenced"), "{said}");
    // Without regions, functions of tenants are refused.
    let gpu = Gpu::start(&["--tenant-memory", "0"], "[tenant.guest]\n")?;
    let (kind, said) = refusal(gpu.client_of("guest")?.deploy(&gpu.vault()?, &named("vault")))?;
    ensure!(kind == RefusalKind::Denied && said.contains("--tenant-memory"), "{said}");
    Ok(())
}
