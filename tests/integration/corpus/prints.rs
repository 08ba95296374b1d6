//! Calls of `printf` in code for AMD GPUs print the same text as on the host device, whose helper
//! reads the arguments directly.

use crate::random_kernels::AMD;
use anyhow::{Result, ensure};
use atoll_tests::seed;
use atoll_workbench::{
    AmdBench, Arg, Buffer, HostBench, HostOptions, Inputs, Kernel, KernelDevice, Launch, Outcome, Verdict, compare,
};
use std::fmt::Write as _;

/// An argument, as it is packed for `vprintf`.
#[derive(Clone, Copy)]
enum Packed {
    Int(u32),
    Long(u64),
    Text(&'static str),
}

use Packed::{Int, Long, Text};

/// One warp, so that all devices print in the same order.
const THREADS: u32 = 32;

/// Formats with their arguments. The last one has fewer arguments than its format needs: its frame
/// is the end of a thread's local memory.
const CALLS: &[(&str, &[Packed])] = &[
    ("no arguments, 100%%\n", &[]),
    ("%d|%5d|%-5d|%05d|%+i\n", &[Int(-5i32 as u32), Int(6), Int(7), Int(8), Int(9)]),
    ("%x %lld %X %zu %o\n", &[Int(255), Long(u64::MAX), Int(254), Long(1 << 40), Int(8)]),
    ("%c %f %hd %.2e\n", &[Int(65), Long(0x3ff8_0000_0000_0000), Int(3), Long(0x4002_c28f_5c28_f5c3)]),
    ("%s|%6s|%.1s|%s\n", &[Text("first"), Text("two"), Text("three"), Text("")]),
    ("%s %s\n", &[Text("again"), Text("again")]),
    ("%*d|%.*f|%*s\n", &[Int(4), Int(7), Int(1), Long(0x3fd0_0000_0000_0000), Int(6), Text("wide")]),
    ("%p %s\n", &[Long(4096), Long(0)]),
    ("%q %d%%%d %5%d %\n", &[Int(1), Int(2), Int(3)]),
    ("%ld %d %llx %c\n", &[Long(1), Int(2), Long(3), Int(66)]),
    ("too few %d %lld %lld %lld %lld %s\n", &[Int(1)]),
];

/// A kernel whose threads make all calls and store their results.
fn kernel() -> Result<String> {
    let mut head = ".version 7.0\n.target sm_80\n.address_size 64\n\
        .extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 arguments);\n"
        .to_owned();
    let mut frames = String::new();
    let mut body = String::new();
    let mut texts = 0;
    let mut text = |head: &mut String, text: &str| -> Result<usize> {
        let bytes: Vec<String> = text.bytes().chain([0]).map(|byte| byte.to_string()).collect();
        writeln!(head, ".global .align 1 .b8 text{texts}[{}] = {{{}}};", bytes.len(), bytes.join(", "))?;
        texts += 1;
        Ok(texts - 1)
    };
    for (call, (format, arguments)) in CALLS.iter().enumerate() {
        let mut at = 0u32;
        for argument in *arguments {
            let bytes = if matches!(argument, Int(_)) { 4 } else { 8 };
            at = at.next_multiple_of(bytes);
            let value = match argument {
                Int(value) => format!("mov.b32 %r, {value}; st.local.b32 [frame{call}+{at}], %r;"),
                Long(value) => format!("mov.b64 %a, {value}; st.local.b64 [frame{call}+{at}], %a;"),
                Text(of) => {
                    let number = text(&mut head, of)?;
                    format!("mov.u64 %a, text{number}; cvta.global.u64 %a, %a; st.local.b64 [frame{call}+{at}], %a;")
                }
            };
            writeln!(body, "{value}")?;
            at += bytes;
        }
        writeln!(frames, ".local .align 8 .b8 frame{call}[{}];", at.max(4))?;
        let number = text(&mut head, format)?;
        writeln!(
            body,
            "{{ .param .b64 f; .param .b64 a; .param .b32 d;\n\
             mov.u64 %a, text{number}; cvta.global.u64 %a, %a; st.param.b64 [f], %a;\n\
             mov.u64 %a, frame{call}; cvta.local.u64 %a, %a; st.param.b64 [a], %a;\n\
             call.uni (d), vprintf, (f, a); ld.param.b32 %r, [d]; }}\n\
             st.global.u32 [%out+{}], %r;",
            4 * call
        )?;
    }
    Ok(format!(
        "{head}.visible .entry prints(.param .u64 out)\n{{\n{frames}.reg .b32 %r, %t; .reg .b64 %a, %out;\n\
         mov.u32 %t, %tid.x; mul.wide.u32 %a, %t, {}; ld.param.u64 %out, [out]; add.u64 %out, %out, %a;\n\
         {body}ret;\n}}\n",
        4 * CALLS.len()
    ))
}

#[test]
fn amd_code_prints_what_the_host_device_prints() -> Result<()> {
    let text = kernel()?;
    let module = atoll_ptx::parse(&text).map_err(|error| anyhow::anyhow!("{error}\n{text}"))?;
    let block = [THREADS, 1, 1];
    let kernel = Kernel { module: &module, entry: "prints", report: None, block };
    let launch = Launch { grid: [1; 3], shared_bytes: 0, args: vec![Arg::buffer(0)] };
    let bytes = vec![0xff; 4 * CALLS.len() * THREADS as usize];
    let buffers = vec![Buffer { name: "results".into(), bytes, writable: true }];
    let inputs = Inputs::bytes(launch, block, buffers);
    let mut host = HostBench::start(HostOptions::default())?;
    let outcome: Outcome = {
        let loaded = host.load(&kernel)?;
        let outcome = host.launch(&loaded, &inputs.launch, &mut inputs.buffers.clone(), 1);
        host.unload(loaded);
        outcome?
    };
    let lines = outcome.printed.lines().count();
    ensure!(lines == (CALLS.len() - 1) * THREADS as usize, "{lines} lines: {}", outcome.printed);
    let architecture = AMD[(seed() % AMD.len() as u64) as usize];
    let verdict = compare(&mut AmdBench::new(architecture), &mut host, &kernel, &inputs);
    ensure!(matches!(verdict, Verdict::Equal), "{architecture}: {verdict:?}");
    Ok(())
}
