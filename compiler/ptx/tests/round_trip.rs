//! Round trips: an unchanged tree prints the original text; canonical text parses to an equal tree.

use atoll_ptx::build::KernelBuilder;
use atoll_ptx::*;
use std::path::PathBuf;

/// Every file of the corpus and its text.
fn corpus() -> Vec<(PathBuf, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "ptx"));
    files.sort();
    assert!(files.len() >= 18);
    files.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

fn parsed(path: &std::path::Path, text: &str) -> Module {
    parse(text).unwrap_or_else(|errors| panic!("{}:\n{errors}", path.display()))
}

#[test]
fn unchanged_text_round_trips_exactly() {
    for (path, text) in corpus() {
        assert_eq!(print(&parsed(&path, &text)), text, "{}", path.display());
    }
}

#[test]
fn canonical_text_parses_to_the_same_tree() {
    for (path, text) in corpus() {
        let mut module = parsed(&path, &text);
        module.strip_origins();
        let canonical = print(&module);
        let mut again = parsed(&path, &canonical);
        again.strip_origins();
        assert_eq!(again, module, "{}:\n{canonical}", path.display());
        assert_eq!(print(&again), canonical);
    }
}

#[test]
fn every_node_has_its_source_position() {
    for (path, text) in corpus() {
        let lines: Vec<&str> = text.split('\n').collect();
        for item in &parsed(&path, &text).items {
            let mut origins = vec![&item.origin];
            if let ItemKind::Function(function) = &item.kind {
                origins.extend(function.body.iter().flat_map(|body| &body.statements).map(|s| &s.origin));
            }
            for origin in origins {
                let first_line = origin.text.as_deref().unwrap_or("{").split('\n').next().unwrap();
                let here = &lines[origin.line as usize - 1][origin.column as usize - 1..];
                assert!(here.starts_with(first_line), "{}:{}: `{first_line}`", path.display(), origin.line);
            }
        }
    }
}

/// The position of every node, in tree order.
fn places(module: &Module) -> Vec<(u32, u32)> {
    fn of_body(body: &Body, places: &mut Vec<(u32, u32)>) {
        for statement in &body.statements {
            places.push((statement.origin.line, statement.origin.column));
            if let StatementKind::Block(body) = &statement.kind {
                of_body(body, places);
            }
        }
    }
    let mut places = Vec::new();
    for item in &module.items {
        places.push((item.origin.line, item.origin.column));
        if let ItemKind::Function(Function { body: Some(body), .. }) = &item.kind {
            of_body(body, &mut places);
        }
    }
    places
}

#[test]
fn print_located_gives_the_positions_of_the_printed_text() {
    for (path, text) in corpus() {
        let mut module = parsed(&path, &text);
        for built in [false, true] {
            if built {
                module.strip_origins();
            }
            let (printed, mut located) = print_located(&module);
            assert_eq!(printed, print(&module), "{}", path.display());
            let mut read = parsed(&path, &printed);
            assert_eq!(places(&located), places(&read), "{}", path.display());
            located.strip_origins();
            read.strip_origins();
            assert_eq!(located, read, "{}", path.display());
        }
    }
}

/// The statements of the only kernel.
fn statements(module: &mut Module) -> &mut Vec<Statement> {
    let function = module.items.iter_mut().find_map(|item| match &mut item.kind {
        ItemKind::Function(function) => function.body.as_mut(),
        _ => None,
    });
    &mut function.unwrap().statements
}

const SMALL: &str = ".version 7.8\n.target sm_80\n\n// the kernel\n.entry k()\n{\n\t.reg .b32 %r<3>; // registers\n\
    \tadd.s32   %r1,%r2 , 0x10; // sum\n\t.loc 1 2 3\n\tmov.b32 %r1, 1; mov.b32 %r2, 2;\n\tret;\n}\n";

#[test]
fn an_edit_changes_only_its_statement() {
    let mut module = parse(SMALL).unwrap();
    let StatementKind::Instruction(add) = statements(&mut module)[1].edit() else { panic!() };
    add.opcode = "sub".into();
    assert_eq!(print(&module), SMALL.replace("add.s32   %r1,%r2 , 0x10;", "sub.s32\t%r1, %r2, 16;"));
}

#[test]
fn inserted_statements_get_their_own_lines() {
    let mut module = parse(SMALL).unwrap();
    let built = Statement::built(StatementKind::Instruction(Instruction::new("bar.sync", vec![0.into()])));
    statements(&mut module).insert(2, built.clone());
    statements(&mut module).push(built);
    let expected =
        SMALL.replace("0x10; // sum", "0x10;\n\tbar.sync\t0; // sum").replace("ret;\n}", "ret;\n\tbar.sync\t0;\n}");
    assert_eq!(print(&module), expected);
}

#[test]
fn removing_a_statement_keeps_its_neighbours_apart() {
    let mut module = parse(SMALL).unwrap();
    statements(&mut module).remove(3);
    let printed = print(&module);
    assert!(printed.contains(".loc 1 2 3\n mov.b32 %r2, 2;"), "{printed}");
    assert_eq!(parse(&printed).map(|mut again| statements(&mut again).len()), Ok(5));
}

#[test]
fn a_new_header_keeps_the_body() {
    let mut module = parse(SMALL).unwrap();
    let ItemKind::Function(function) = module.items[2].edit() else { panic!() };
    function.params.push(Variable::new(StateSpace::Param, ScalarType::U64, "flag"));
    function
        .attributes
        .push(Directive { name: "maxntid".into(), arguments: vec!["256".into(), "1".into(), "1".into()] });
    assert_eq!(print(&module), SMALL.replace("k()", "k(\n\t.param .u64 flag\n)\n.maxntid 256, 1, 1"));
}

#[test]
fn built_modules_print_in_canonical_form() {
    let mut kernel = KernelBuilder::new("twice");
    kernel.attribute("maxntid", &["128", "1", "1"]);
    let from = kernel.param(ScalarType::U64, "data");
    let (address, value, done) =
        (kernel.reg(ScalarType::U64), kernel.reg(ScalarType::F32), kernel.reg(ScalarType::Pred));
    kernel.array(StateSpace::Shared, "tile", 16, 512);
    let end = kernel.label("end");
    kernel.emit("ld.param.u64", [address.clone().into(), from]);
    kernel.emit("setp.eq.u64", [done.clone().into(), address.clone().into(), 0.into()]);
    kernel.emit_if(&done, false, "bra", [end.clone().into()]);
    kernel.emit("ld.global.f32", [value.clone().into(), atoll_ptx::build::address(&address, -4)]);
    kernel.emit("mul.rn.f32", [value.clone().into(), value.clone().into(), 2.0f32.into()]);
    kernel.emit("call.uni", [Operand::List(vec![]), "outside".into(), Operand::List(vec![value.into()])]);
    kernel.place(&end);
    kernel.emit("ret", []);
    let mut module = atoll_ptx::build::module("7.0", "sm_80");
    let mut outside = parse(".extern .func outside(.reg .f32 x);").unwrap();
    outside.strip_origins();
    module.items.append(&mut outside.items);
    module.items.push(Item::built(ItemKind::Function(kernel.finish())));
    let expected = "\
.version 7.0
.target sm_80
.address_size 64

.extern .func outside(
\t.reg .f32 x
);

.visible .entry twice(
\t.param .u64 twice_param_0
)
.maxntid 128, 1, 1
{
\t.reg .b64 %rd<2>;
\t.reg .f32 %f<2>;
\t.reg .pred %p<2>;
\t.shared .align 16 .b8 tile[512];
\tld.param.u64\t%rd1, [twice_param_0];
\tsetp.eq.u64\t%p1, %rd1, 0;
\t@%p1 bra\t$L_end_1;
\tld.global.f32\t%f1, [%rd1+-4];
\tmul.rn.f32\t%f1, %f1, 0f40000000;
\tcall.uni\toutside, (%f1);
$L_end_1:
\tret;
}
";
    assert_eq!(print(&module), expected);
    atoll_ptx::verify(&module).unwrap();
    let mut again = parse(expected).unwrap();
    again.strip_origins();
    module.strip_origins();
    assert_eq!(again, module);
}

/// The list of initial values of a corpus variable.
fn values(module: &Module, name: &str) -> Vec<Initializer> {
    let variable = module.items.iter().filter_map(Item::variable).find(|variable| variable.name == name).unwrap();
    match &variable.initializer {
        Some(Initializer::List(items)) => items.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn constant_expressions_have_the_values_of_the_assembler() {
    let module = parse(include_str!("corpus/old_style.ptx")).unwrap();
    let integers: Vec<i64> = values(&module, "values")
        .iter()
        .map(|value| match value {
            Initializer::Immediate(Immediate::Int(value)) => *value as i64,
            other => panic!("{other:?}"),
        })
        .collect();
    // As ptxas 13.5 writes them to the object file.
    #[rustfmt::skip]
    let expected = [
        5, 3, -1, 1, -3, -2, 2, 0, 1, 1, -1, 2, 64, -1, 28, 1, 1, 0, -3074457345618258602, 9223372036854775804,
        1, 1, 1, 3, 63, 3, 5, -1, -4, 1, 0, 1,
    ];
    assert_eq!(integers, expected);
    let doubles: Vec<f64> = values(&module, "doubles")
        .iter()
        .map(|value| match value {
            Initializer::Immediate(Immediate::F64(bits)) => f64::from_bits(*bits),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(doubles, [3.0, -2.5, 0.75, 2.0, 0.5, 100.0]);
}

#[test]
fn the_smallest_integer_round_trips() {
    let instruction = Instruction::new("mov.b64", vec!["%rd1".into(), i64::MIN.into()]);
    let body = parse(&format!(".func f() {{ {instruction}; }}")).unwrap();
    let again = body.function("f").unwrap().body.as_ref().unwrap().statements[0].instruction().unwrap().clone();
    assert_eq!(again, instruction);
}

const SEVERAL: &str =
    ".global .u32 a,b[2] = {1, 2}, /* last */ c;\n.func f()\n{\n\t.shared .f32 x,\n\t\ty;\n\tret;\n}\n";

#[test]
fn a_declaration_of_several_variables_gives_one_node_each() {
    let module = parse(SEVERAL).unwrap();
    let names: Vec<&str> = module.items.iter().filter_map(Item::variable).map(|v| v.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let body = module.function("f").unwrap().body.as_ref().unwrap();
    assert_eq!(body.statements.iter().filter_map(Statement::variable).count(), 2);
    assert_eq!(print(&module), SEVERAL);
}

#[test]
fn parts_of_a_declaration_can_be_changed_and_removed() {
    let change = |change: &dyn Fn(&mut Module)| {
        let mut module = parse(SEVERAL).unwrap();
        change(&mut module);
        let text = print(&module);
        let again = parse(&text).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        let kinds = |m: &Module| m.items.iter().map(|item| item.kind.clone()).collect::<Vec<_>>();
        assert_eq!(kinds(&again).len(), kinds(&module).len(), "{text}");
        let variables = |m: &Module| m.items.iter().filter_map(Item::variable).cloned().collect::<Vec<_>>();
        assert_eq!(variables(&again), variables(&module), "{text}");
        text
    };
    // The remaining parts still form a declaration.
    assert!(change(&|m| drop(m.items.remove(1))).starts_with(".global .u32 a, /* last */ c;\n"));
    let first_gone = change(&|m| drop(m.items.remove(0)));
    assert!(
        first_gone.contains(".global .u32 b[2] = {1, 2};") && first_gone.contains(".global .u32 c;"),
        "{first_gone}"
    );
    assert!(change(&|m| drop(m.items.remove(2))).starts_with(".global .u32 a;"));
    let edited = change(&|m| match m.items[1].edit() {
        ItemKind::Variable(variable) => variable.align = Some(16),
        _ => panic!(),
    });
    assert!(edited.contains(".global .align 16 .u32 b[2]") && edited.contains(".global .u32 a;"), "{edited}");
    change(&|m| m.items.swap(0, 2));
    change(&|m| {
        m.items.insert(1, Item::built(ItemKind::Variable(Variable::new(StateSpace::Global, ScalarType::F64, "new"))))
    });
}
