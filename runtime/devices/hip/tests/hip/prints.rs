//! What kernels print arrives in the report of their launch.

use super::make;
use super::suite::rig::{Kernel, Launch, Rig, Wanted};
use atoll_core::DeviceOffset;
use atoll_device::{LaunchReport, LaunchStatus};

/// The suite's kernel without a body.
const EMPTY: &str = ".visible .entry print_all(.param .u64 counts, .param .u32 at, .param .u32 kind, \
    .param .u64 address)\n{\n\tret;\n}\n";

/// The first thread of each block prints: with a format of its own if `kind` is 0, else with the one
/// that is stored at `counts`.
const PRINTS: &str = ".visible .entry print_all(.param .u64 counts, .param .u32 at, .param .u32 kind, \
    .param .u64 address)
{
	.local .align 8 .b8 frame[24];
	.reg .pred %other, %default;
	.reg .b32 %word;
	.reg .b64 %format, %own, %at;
	mov.u32 %word, %tid.x;
	setp.ne.u32 %other, %word, 0;
	@%other ret;
	mov.u32 %word, %ctaid.x;
	st.local.u32 [frame], %word;
	mov.b64 %at, 0d400C000000000000;
	st.local.b64 [frame+8], %at;
	mov.u64 %at, printed_text;
	cvta.global.u64 %at, %at;
	st.local.b64 [frame+16], %at;
	ld.param.u64 %format, [counts];
	ld.param.u32 %word, [kind];
	setp.eq.u32 %default, %word, 0;
	mov.u64 %own, printed_format;
	cvta.global.u64 %own, %own;
	selp.b64 %format, %own, %format, %default;
	mov.u64 %at, frame;
	cvta.local.u64 %at, %at;
	{
	.param .b64 format;
	.param .b64 arguments;
	.param .b32 taken;
	st.param.b64 [format], %format;
	st.param.b64 [arguments], %at;
	call.uni (taken), vprintf, (format, arguments);
	}
	ret;
}
";

/// Gives the suite's kernel for output a body.
pub(super) fn with_output(ptx: &str) -> String {
    assert!(ptx.contains(EMPTY), "the suite has the kernel");
    let bytes = |text: &str| text.bytes().map(|byte| format!("{byte}, ")).collect::<String>() + "0";
    let (format, text) = ("block %d: %.1f %s\n", "seven");
    let head = format!(
        ".extern .func (.param .b32 taken) vprintf(.param .b64 format, .param .b64 arguments);\n\
         .global .align 1 .b8 printed_format[{}] = {{{}}};\n.global .align 1 .b8 printed_text[{}] = {{{}}};\n",
        format.len() + 1,
        bytes(format),
        text.len() + 1,
        bytes(text)
    );
    ptx.replace(EMPTY, &(head + PRINTS))
}

fn print(rig: &mut Rig, blocks: u32, stored: Option<DeviceOffset>) -> LaunchReport {
    let at = stored.unwrap_or(DeviceOffset(0));
    let launch = Launch { kernel: Kernel::PrintAll, ..Launch::fault_at(blocks, at, 0, u32::from(stored.is_some()), 0) };
    let completion = rig.run(1, &launch);
    assert_eq!(completion.status, LaunchStatus::Complete);
    rig.device.report(completion.launch).unwrap_or_default()
}

#[test]
fn the_output_of_a_kernel_is_in_its_report() {
    let mut rig = make(Wanted::default());
    // More launches than slots: buffers are used again.
    for blocks in [20, 1, 3, 2, 1, 0, 4] {
        let report = print(&mut rig, blocks, None);
        assert_eq!((report.fault, report.printed_lost_bytes), (None, 0));
        let mut lines: Vec<&str> = report.printed.lines().collect();
        lines.sort_by_key(|line| (line.len(), *line));
        let expected: Vec<String> = (0..blocks).map(|block| format!("block {block}: 3.5 seven")).collect();
        assert_eq!(lines, expected);
    }
}

#[test]
fn a_kernel_that_prints_too_much_is_told_how_many_lines_were_dropped() {
    let mut rig = make(Wanted::default());
    let format = "x".repeat(2999) + "\n";
    let stored = rig.alloc(4096);
    rig.device.write(stored, format.as_bytes()).expect("it is written");
    let report = print(&mut rig, 25, Some(stored));
    // 21 records of 3,024 bytes fit into 64 KiB.
    let notice = "[4 more lines were dropped: a launch prints into a buffer of limited size]\n";
    assert!(report.printed.ends_with(notice), "{}", report.printed.len());
    assert_eq!(report.printed.len(), 21 * format.len() + notice.len());
    assert_eq!(print(&mut rig, 1, None).printed, "block 0: 3.5 seven\n", "the next launch prints again");
}
