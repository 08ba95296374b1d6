//! Messages about invalid modules: for each `tests/errors/NAME.ptx`, `NAME.snap` holds the errors
//! of the parser or, if it parses, of the verifier. `INSTA_UPDATE=always cargo test -p atoll-ptx
//! --test errors` updates the snapshots.

use atoll_ptx::{parse, verify};
use std::path::PathBuf;

fn corpus() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "ptx"));
    files.sort();
    files
}

fn messages(text: &str) -> String {
    match parse(text) {
        Err(errors) => format!("{errors}\n"),
        Ok(module) => verify(&module).err().map_or_else(String::new, |faults| format!("{faults}\n")),
    }
}

#[test]
fn invalid_modules() {
    insta::with_settings!({ snapshot_path => "errors", prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::glob!("errors/*.ptx", |input| {
            let messages = messages(&std::fs::read_to_string(input).unwrap());
            assert!(!messages.is_empty(), "no error in {}", input.display());
            let name = input.file_stem().unwrap().to_str().unwrap();
            insta::with_settings!({ snapshot_suffix => "" }, { insta::assert_snapshot!(name, messages) });
        });
    });
}

#[test]
fn valid_modules() {
    for path in corpus() {
        assert_eq!(messages(&std::fs::read_to_string(&path).unwrap()), "", "{}", path.display());
    }
}

#[test]
fn errors_beyond_the_limit_are_truncated() {
    let errors = parse(&"?;\n".repeat(1000)).unwrap_err();
    assert!(errors.truncated && errors.errors.len() == atoll_ptx::limits::MAX_SYNTAX_ERRORS);
    let body = format!(".version 7.8\n.target sm_80\n.entry k() {{ {} ret; }}", "st.b32 [nothing], 0;\n".repeat(1000));
    let errors = parse(&body.replace("st.b32", "st.b32 ,")).unwrap_err();
    assert!(errors.truncated && errors.errors.len() == atoll_ptx::limits::MAX_SYNTAX_ERRORS);
    let faults = verify(&parse(&body).unwrap()).unwrap_err();
    assert!(faults.truncated && faults.list.len() == atoll_ptx::limits::MAX_FAULTS);
}

#[test]
fn nesting_is_bounded() {
    for (open, close) in [("{", "}"), ("mov.b32 {", "};"), ("mov.b32 %r1, (", ");"), ("mov.b32 %r1, -", "1;")] {
        let body = format!("{}{}", open.repeat(100_000), close.repeat(100_000));
        let error = parse(&format!(".version 7.8\n.target sm_80\n.entry k() {{ {body} }}")).unwrap_err();
        assert!(error.errors[0].expected.len() < 100);
    }
}

#[test]
fn a_missing_brace_is_reported_once() {
    // The parser notices the missing brace only at the next `.entry`.
    let text = ".version 7.8\n.target sm_80\n.entry k()\n{\n ret;\n{ ret; }\n.entry l()\n{\n ret;\n}\n.file 1 \"a\"\n";
    let errors = parse(text).unwrap_err();
    assert_eq!(errors.to_string(), "7:1: expected a statement or `}`, found `.entry`");
}
