//! Device functions: parameters of every kind, divergence, barriers, exits, function pointers.

use crate::common::{Args, Launch, at_every_level, try_compile};
use atoll_target_host::{CpuLevel, HostError, LowerError};

/// The start of a kernel; computes `%r4`, the global thread index, and `%rd5`, the address of the
/// thread's u32 output.
const PROLOGUE: &str = "
  .reg .pred %p<9>; .reg .b32 %r<40>; .reg .f32 %f<9>; .reg .b64 %rd<20>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r4, %r2, %r3, %r1;
  mul.wide.u32 %rd4, %r4, 4; add.u64 %rd5, %rd1, %rd4;";

/// Runs `functions` and a kernel with `body` over two blocks, and compares the output of thread `i`
/// of a block with `expected`.
fn check(functions: &str, body: &str, threads: u32, expected: impl Fn(u32) -> u32) {
    let text = format!("{functions}\n.visible .entry k(.param .u64 out)\n{{{PROLOGUE}\n{body}\n}}");
    at_every_level(&text, "k", [threads, 1, 1], |kernel| {
        let mut out = vec![77u32; 2 * threads as usize];
        let trap = kernel.run(Launch::grid(2, 1, 1), Args::new().slice(&mut out));
        assert_eq!(trap, None);
        for (i, found) in out.iter().enumerate() {
            assert_eq!(*found, expected(i as u32), "thread {i} of blocks of {threads}");
        }
    });
}

#[test]
fn scalars_go_through_parameters_as_nvcc_writes_it() {
    let functions = "
.func (.param .b32 func_retval0) weigh(.param .b32 weigh_param_0, .param .b64 weigh_param_1)
{
  .reg .b32 %r<9>; .reg .b64 %rd<3>; .reg .pred %p<2>;
  ld.param.u32 %r1, [weigh_param_0];
  ld.param.u64 %rd1, [weigh_param_1];
  cvt.u32.u64 %r2, %rd1;
  setp.gt.u32 %p1, %r1, 20;
  @%p1 bra BIG;
  mad.lo.u32 %r3, %r1, %r2, 1;
  st.param.b32 [func_retval0+0], %r3;
  ret;
BIG:
  sub.u32 %r4, %r1, %r2;
  st.param.b32 [func_retval0+0], %r4;
  ret;
}";
    let body = "
  {
    .param .b32 param0; st.param.b32 [param0+0], %r4;
    .param .b64 param1; st.param.b64 [param1+0], 3;
    .param .b32 retval0;
    call.uni (retval0), weigh, (param0, param1);
    ld.param.b32 %r5, [retval0+0];
  }
  st.global.u32 [%rd5], %r5;
  ret;";
    for threads in [32, 40, 96] {
        check(functions, body, threads, |i| if i > 20 { i - 3 } else { i * 3 + 1 });
    }
}

#[test]
fn registers_structures_and_several_returns() {
    let functions = "
.func (.reg .u32 low, .reg .u32 high) halves(.reg .u64 x)
{
  mov.b64 {low, high}, x;
  ret;
}
.func (.param .align 8 .b8 both[16]) swap(.param .align 8 .b8 pair[16], .param .u8 add)
{
  .reg .b32 %r<9>; .reg .b64 %rd<3>; .reg .b16 %rs<3>;
  ld.param.v2.u32 {%r1, %r2}, [pair];
  ld.param.u64 %rd1, [pair+8];
  ld.param.u8 %rs1, [add];
  cvt.u32.u16 %r3, %rs1;
  add.u32 %r1, %r1, %r3;
  st.param.u64 [both], %rd1;
  st.param.v2.u32 [both+8], {%r2, %r1};
  ret;
}";
    let body = "
  {
    .param .align 8 .b8 param0[16];
    .param .b8 param1;
    .param .align 8 .b8 retval0[16];
    mov.b64 %rd6, {%r4, %r1};
    st.param.b64 [param0], %rd6;
    cvt.u64.u32 %rd7, %r3;
    st.param.b64 [param0+8], %rd7;
    .reg .b16 %rs1; mov.u16 %rs1, 259;
    st.param.b8 [param1], %rs1;
    call (retval0), swap, (param0, param1);
    ld.param.b64 %rd8, [retval0];
    ld.param.b64 %rd9, [retval0+8];
  }
  call (%r10, %r11), halves, (%rd9);
  cvt.u32.u64 %r12, %rd8;
  // %r10 = tid, %r11 = index + 3, %r12 = ntid
  mad.lo.u32 %r13, %r11, 1000, %r12;
  mad.lo.u32 %r13, %r13, 100, %r10;
  st.global.u32 [%rd5], %r13;
  ret;";
    check(functions, body, 64, |i| ((i + 3) * 1000 + 64) * 100 + i % 64);
}

#[test]
fn a_parameter_whose_address_is_taken_lies_in_local_memory() {
    let functions = "
.func (.param .b32 r) pick(.param .align 4 .b8 table[16], .param .b32 index)
{
  .reg .b32 %r<9>; .reg .b64 %rd<5>;
  ld.param.u32 %r1, [index];
  mov.b64 %rd1, table;
  mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
  ld.local.u32 %r2, [%rd3];
  st.param.b32 [r], %r2;
  ret;
}";
    let body = "
  {
    .param .align 4 .b8 param0[16]; .param .b32 param1; .param .b32 retval0;
    st.param.b32 [param0], 5; st.param.b32 [param0+4], %r4; st.param.b32 [param0+8], 7; st.param.b32 [param0+12], 8;
    and.b32 %r6, %r4, 3;
    call (retval0), pick, (param0, %r6);
    ld.param.b32 %r5, [retval0];
  }
  st.global.u32 [%rd5], %r5; ret;";
    check(functions, body, 64, |i| [5, i, 7, 8][i as usize % 4]);
}

#[test]
fn calls_under_divergence_with_barriers_and_exits_inside() {
    let functions = "
.shared .align 4 .b8 space[1024];
.func (.param .b32 r) shared_turn(.param .b32 x)
{
  .reg .b32 %r<9>; .reg .b64 %rd<5>;
  .shared .align 4 .b8 own[1024];
  ld.param.u32 %r1, [x];
  mov.u32 %r2, %tid.x; shl.b32 %r3, %r2, 2; mov.u32 %r4, own; add.u32 %r5, %r4, %r3;
  st.shared.u32 [%r5], %r1;
  bar.sync 0;
  xor.b32 %r3, %r3, 252; add.u32 %r5, %r4, %r3;
  ld.shared.u32 %r6, [%r5];
  bar.sync 0;
  st.param.b32 [r], %r6;
  ret;
}
.func leave(.param .b32 x)
{
  .reg .b32 %r<3>; .reg .pred %p<2>;
  ld.param.u32 %r1, [x];
  setp.ne.u32 %p1, %r1, 5;
  @%p1 ret;
  exit;
}";
    let body = "
  {
    .param .b32 param0; .param .b32 retval0;
    st.param.b32 [param0], %r1;
    call.uni (retval0), shared_turn, (param0);
    ld.param.b32 %r5, [retval0];
  }
  {
    .param .b32 param0; .param .b32 retval0;
    add.u32 %r6, %r5, 100; st.param.b32 [param0], %r6;
    call.uni (retval0), shared_turn, (param0);
    ld.param.b32 %r7, [retval0];
  }
  // %r5 = 63 - tid, %r7 = tid + 100
  and.b32 %r8, %r1, 1; setp.eq.u32 %p1, %r8, 1;
  @%p1 call leave, (%r1);
  mad.lo.u32 %r9, %r5, 1000, %r7;
  st.global.u32 [%rd5], %r9;
  ret;";
    check(functions, body, 64, |i| if i % 64 == 5 { 77 } else { (63 - i % 64) * 1000 + i % 64 + 100 });
}

/// Four operations of one signature, and a table of them.
const OPERATIONS: &str = "
.func (.param .b32 r) twice(.param .b32 x) { .reg .b32 %r<3>; ld.param.b32 %r1, [x]; shl.b32 %r2, %r1, 1; \
    st.param.b32 [r], %r2; ret; }
.func (.param .b32 r) square(.param .b32 x) { .reg .b32 %r<3>; ld.param.b32 %r1, [x]; mul.lo.u32 %r2, %r1, %r1; \
    st.param.b32 [r], %r2; ret; }
.func (.param .b32 r) next(.param .b32 x) { .reg .b32 %r<3>; ld.param.b32 %r1, [x]; add.u32 %r2, %r1, 1; \
    st.param.b32 [r], %r2; ret; }
.func (.param .b64 r) other(.param .b32 x) { st.param.b64 [r], 0; ret; }
.global .align 8 .u64 operations[3] = { twice, square, next };
.global .align 8 .u64 where = operations;
";

#[test]
fn calls_go_through_tables_of_functions() {
    let body = "
  rem.u32 %r6, %r4, 3;
  mul.wide.u32 %rd6, %r6, 8; ld.global.u64 %rd8, [where]; add.u64 %rd7, %rd8, %rd6;
  ld.global.u64 %rd9, [%rd7];
  {
    .param .b32 param0; .param .b32 retval0;
    st.param.b32 [param0], %r4;
    prototype_0: .callprototype (.param .b32 _) _ (.param .b32 _);
    call (retval0), %rd9, (param0), prototype_0;
    ld.param.b32 %r5, [retval0];
  }
  st.global.u32 [%rd5], %r5; ret;";
    for threads in [32, 96] {
        check(OPERATIONS, body, threads, |i| [i * 2, i * i, i + 1][i as usize % 3]);
    }
    let listed = "
  targets: .calltargets twice, next;
  setp.lt.u32 %p1, %r1, 32; mov.u64 %rd6, twice; mov.u64 %rd7, next; selp.b64 %rd8, %rd6, %rd7, %p1;
  call (%r5), %rd8, (%r4), targets;
  st.global.u32 [%rd5], %r5; ret;";
    check(OPERATIONS, listed, 64, |i| if i % 64 < 32 { i * 2 } else { i + 1 });
}

#[test]
fn a_pointer_to_no_function_traps() {
    let text = format!(
        "{OPERATIONS}.visible .entry k(.param .u64 out)\n{{{PROLOGUE}
  t: .calltargets twice;
  call (%r5), %rd5, (%r4), t;
  st.global.u32 [%rd5], %r5; ret; }}"
    );
    at_every_level(&text, "k", [32, 1, 1], |kernel| {
        let mut out = vec![0u32; 32];
        assert!(kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut out)).is_some_and(|t| t.0 == 1));
    });
}

#[test]
fn invalid_calls_are_rejected_by_name() {
    let refused = |functions: &str, call: &str| match try_compile(
        &format!("{functions}\n.visible .entry k(.param .u64 out)\n{{{PROLOGUE}\n{call}\nret;\n}}"),
        "k",
        [32, 1, 1],
        CpuLevel::V3,
    ) {
        Err(HostError::Lower(LowerError::Unsupported { what, .. })) => what,
        Err(other) => other.to_string(),
        Ok(_) => panic!("it was accepted"),
    };
    let recursion = ".func f(.reg .u32 x) { .reg .pred %p; setp.eq.u32 %p, x, 0; @!%p call f, (x); ret; }";
    assert!(refused(recursion, "call f, (%r4);").contains("recursion: `f`"));
    assert!(refused(".extern .func g(.param .b32 x);", "call g, (%r4);").contains("`g`"));
    assert!(refused("", "call h, (%r4);").contains("`h`"));
    assert!(refused(".func f(.reg .u32 x) { ret; }", "call f, (%r4, %r5);").contains("`f`"));
}

#[test]
fn a_long_switch_finds_its_case() {
    let cases = 37u32;
    let labels: Vec<String> = (0..cases).map(|c| format!("L{c}")).collect();
    let mut body =
        format!("  table: .branchtargets {};\n  rem.u32 %r6, %r4, {cases}; brx.idx %r6, table;\n", labels.join(", "));
    for c in 0..cases {
        body += &format!("L{c}: add.u32 %r5, %r4, {}; bra DONE;\n", c * c);
    }
    body += "DONE: st.global.u32 [%rd5], %r5; ret;";
    for threads in [32, 64] {
        check("", &body, threads, |i| i + (i % cases) * (i % cases));
    }
}
