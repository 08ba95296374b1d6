//! The clocks of AMD GPUs, read by compiled code in the interpreter, whose counters count
//! instructions.

use atoll_amd_interp::{Launch, Memory, Options as RunOptions, Program, RunError, run};
use atoll_target_amd::{AmdError, Architecture, CodeObject, KernelShape, Options, abi, compile};

/// Waits for as many cycles or nanoseconds as its parameter says.
fn wait(clock: &str) -> String {
    format!(
        "
.version 7.0
.target sm_80
.address_size 64
.visible .entry wait(.param .u64 count)
{{
    .reg .pred %more;
    .reg .b64 %begin, %now, %count;
    ld.param.u64 %count, [count];
    mov.u64 %begin, {clock};
LOOP:
    mov.u64 %now, {clock};
    sub.s64 %now, %now, %begin;
    setp.lt.s64 %more, %now, %count;
    @%more bra LOOP;
    ret;
}}
"
    )
}

fn compiled(clock: &str, architecture: Architecture) -> Result<CodeObject, AmdError> {
    let module = atoll_ptx::parse(&wait(clock)).unwrap();
    let shape = KernelShape { name: "wait".into(), block: [64, 1, 1] };
    compile(&module, &[shape], architecture, &Options::default())
}

/// The number of instructions until a wait ends.
fn instructions(code: &CodeObject, count: u64) -> Result<u64, RunError> {
    let program = Program::load(&code.elf).unwrap();
    let (grid, block) = ([1; 3], [64, 1, 1]);
    let kernarg = abi::kernarg(&count.to_le_bytes(), grid, block, 0, 0);
    let launch = Launch { grid, block, dynamic_lds: 0, kernarg };
    let options = RunOptions { limit: 10_000_000, ..RunOptions::default() };
    run(&[&program], "wait", &launch, &mut Memory::new(), &options).map(|stats| stats.total())
}

/// The shader clock of gfx10 and gfx11 has 20 bits: a longer wait on it would never end.
#[test]
fn a_wait_may_be_longer_than_2_to_the_20_cycles() {
    let count = (1 << 20) + 1000;
    for architecture in Architecture::ALL {
        let code = compiled("%clock64", architecture).unwrap();
        let waited = instructions(&code, count).unwrap_or_else(|error| panic!("{architecture}: {error}"));
        assert!(waited > count / 25, "{architecture}: {waited} instructions");
    }
}

#[test]
fn the_global_timer_is_in_nanoseconds_or_refused() {
    for architecture in Architecture::ALL {
        match compiled("%globaltimer", architecture) {
            Ok(code) => {
                // A tick of the counter, which is an instruction here, is 10 ns.
                let waited = instructions(&code, 100_000).unwrap();
                assert!((10_000..11_000).contains(&waited), "{architecture}: {waited} instructions");
            }
            Err(error) => {
                assert!(["gfx906", "gfx908", "gfx90a"].contains(&architecture.name()), "{architecture}: {error}");
                let text = error.to_string();
                assert!(text.contains("line 9") && text.contains("depends on the board"), "{text}");
            }
        }
    }
}
