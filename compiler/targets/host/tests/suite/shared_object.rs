//! The ELF file of native code contains everything that a loader and a debugger need, and depends
//! on nothing else.

use crate::common::{Args, Launch, at_every_level, levels};
use atoll_target_host::{KernelShape, Options, compile};
use object::elf;
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object, ObjectSection, ObjectSymbol};

/// Two kernels, variables of every kind, and variables that hold addresses of variables.
const TEXT: &str = "
.global .align 4 .u32 count;
.global .align 4 .u32 table[4] = {3, 5, 7, 11};
.const .align 4 .u32 scale = 10;
.global .align 8 .u64 places[2] = {generic(table)+8, count};
.visible .entry add(.param .u64 out)
{
  .reg .b32 %r<9>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [out];
  mov.u64 %rd2, places; ld.global.u64 %rd3, [%rd2]; ld.u32 %r1, [%rd3+4];
  ld.const.u32 %r2, [scale]; mad.lo.u32 %r1, %r1, %r2, 1;
  ld.global.u64 %rd4, [%rd2+8]; ld.global.u32 %r3, [%rd4]; add.u32 %r1, %r1, %r3;
  add.u32 %r4, %r3, 1000; st.global.u32 [%rd4], %r4;
  st.global.u32 [%rd1], %r1;
  ret;
}
.visible .entry other(.param .u64 out)
{
  .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<4>;
  ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
  cvt.rn.f32.u32 %f1, %r1; sin.approx.f32 %f2, %f1; st.global.f32 [%rd3], %f2;
  ret;
}";

#[test]
fn variables_point_to_each_other() {
    at_every_level(TEXT, "add", [1, 1, 1], |kernel| {
        for before in [0, 1000] {
            let mut out = vec![0u32];
            assert_eq!(kernel.run(Launch::grid(1, 1, 1), Args::new().slice(&mut out)), None);
            assert_eq!(out[0], 111 + before);
        }
    });
}

#[test]
fn an_object_has_no_dependencies_and_exports_its_symbols() {
    let module =
        atoll_ptx::parse(&format!(".version 7.0\n.target sm_80\n.address_size 64\n{TEXT}")).expect("well-formed");
    let shape = |name: &str| KernelShape { name: name.into(), block: [32, 1, 1] };
    for level in levels() {
        let object = compile(&module, &[shape("add"), shape("other")], level, &Options::default()).expect("compiles");
        let again = compile(&module, &[shape("add"), shape("other")], level, &Options::default()).expect("compiles");
        assert!(object.elf == again.elf, "the same text gives the same bytes");
        check_loading(&object.elf);
        check_symbols(&object.elf);
    }
}

/// No segment is both writable and executable; the loader only has to apply relocations.
fn check_loading(elf: &[u8]) {
    let header = elf::FileHeader64::<Endianness>::parse(elf).expect("an ELF file");
    let endian = header.endian().expect("little");
    let segments = header.program_headers(endian, elf).expect("program headers");
    for segment in segments {
        let flags = segment.p_flags(endian);
        assert!(flags.0 & elf::PF_W.0 == 0 || flags.0 & elf::PF_X.0 == 0);
        let Some(entries) = segment.dynamic(endian, elf).expect("a dynamic section") else { continue };
        for entry in entries {
            let tag = entry.d_tag(endian);
            assert!(![elf::DT_NEEDED, elf::DT_TEXTREL, elf::DT_INIT, elf::DT_INIT_ARRAY].contains(&tag), "{tag:?}");
        }
    }
    assert!(segments.iter().any(|s| s.p_type(endian) == elf::PT_GNU_STACK));
    let file = object::File::parse(elf).expect("an ELF file");
    let relocations: Vec<_> = file.dynamic_relocations().into_iter().flatten().map(|(_, r)| r.flags()).collect();
    assert_eq!(relocations, [object::RelocationFlags::Elf { r_type: elf::R_X86_64_RELATIVE }; 2]);
}

/// Kernels, variables with their sizes, and lines.
fn check_symbols(elf: &[u8]) {
    let file = object::File::parse(elf).expect("an ELF file");
    let exported: Vec<String> = file.dynamic_symbols().map(|s| s.name().expect("a name").to_owned()).collect();
    for name in ["add", "other", atoll_kgraph::host_abi::HOST_ABI_SYMBOL] {
        assert!(exported.iter().any(|e| e == name), "{name} in {exported:?}");
    }
    assert!(file.symbols().chain(file.dynamic_symbols()).all(|s| s.is_definition()));
    let size =
        |name: &str| file.symbols().find(|s| s.name() == Ok(name)).map(|s| (s.size(), s.section_index().is_some()));
    assert_eq!((size("atoll_var_table"), size("atoll_var_count")), (Some((16, true)), Some((4, true))));
    let lines = file.section_by_name(".debug_line").expect("lines");
    assert!(lines.size() > 0 && lines.address() == 0);
}
