//! Measures how fast PTX is parsed, printed, verified and analysed. Without a file, it measures a
//! generated kernel of 500 kB.
//!
//! `cargo run --release -p atoll-ptx --example speed -- FILE.ptx`

use atoll_ptx::analysis::{Cfg, Code, DominatorTree, Liveness, Loops};
use std::time::Instant;

/// A kernel of many small loops.
fn made_up(bytes: usize) -> String {
    let mut text =
        String::from(".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 k_param_0)\n{\n");
    text += "\t.reg .pred \t%p<2>;\n\t.reg .b32 \t%r<40000>;\n\t.reg .f32 \t%f<40000>;\n\t.reg .b64 \t%rd<2>;\n\
             \tld.param.u64 \t%rd1, [k_param_0];\n";
    for block in 1.. {
        if text.len() > bytes {
            break;
        }
        text += &format!("$L__BB0_{block}:                              // a loop\n");
        for step in 0..8 {
            let register = block * 8 + step;
            text += &format!(
                "\tld.global.f32 \t%f{register}, [%rd1+{}];\n\
                 \tfma.rn.f32 \t%f{register}, %f{register}, 0f3F800000, %f{};\n",
                register * 4,
                register - 8
            );
        }
        text += &format!(
            "\tadd.s32 \t%r{block}, %r{block}, 1;\n\
             \tsetp.lt.s32 \t%p1, %r{block}, 100;\n\t@%p1 bra \t$L__BB0_{block};\n"
        );
    }
    text + "\tret;\n}\n"
}

#[expect(clippy::print_stdout, reason = "an example's output")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = match std::env::args().nth(1) {
        Some(path) => std::fs::read_to_string(path)?,
        None => made_up(500_000),
    };
    let start = Instant::now();
    let module = atoll_ptx::parse(&text)?;
    println!("{} bytes, {} functions", text.len(), module.functions().count());
    println!("parse    {:8.2?}", start.elapsed());

    let start = Instant::now();
    assert_eq!(atoll_ptx::print(&module), text);
    println!("print    {:8.2?}", start.elapsed());

    let start = Instant::now();
    atoll_ptx::verify(&module)?;
    println!("verify   {:8.2?}", start.elapsed());

    let start = Instant::now();
    let (mut blocks, mut loops) = (0, 0);
    for function in module.functions() {
        let code = Code::of(function);
        let cfg = Cfg::of(&code)?;
        let dominators = DominatorTree::dominators(&cfg);
        loops += Loops::of(&cfg, &dominators).iter().len();
        DominatorTree::postdominators(&cfg);
        Liveness::of(&code, &cfg)?;
        blocks += cfg.len();
    }
    println!("analyse  {:8.2?}  {blocks} blocks, {loops} loops", start.elapsed());
    Ok(())
}
