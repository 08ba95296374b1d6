//! The files of the page, compiled into the program.

/// A file of the page.
pub(crate) struct PageFile {
    pub(crate) content_type: &'static str,
    pub(crate) text: &'static str,
}

/// The file of this name; the empty name is the page itself.
pub(crate) fn file(name: &str) -> Option<PageFile> {
    let (content_type, text) = match name {
        "" => ("text/html; charset=utf-8", include_str!("page/index.html")),
        "dashboard.css" => ("text/css; charset=utf-8", include_str!("page/dashboard.css")),
        "dashboard.js" => ("text/javascript; charset=utf-8", include_str!("page/dashboard.js")),
        "tables.js" => ("text/javascript; charset=utf-8", include_str!("page/tables.js")),
        "charts.js" => ("text/javascript; charset=utf-8", include_str!("page/charts.js")),
        _ => return None,
    };
    Some(PageFile { content_type, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 5] = ["", "dashboard.css", "dashboard.js", "tables.js", "charts.js"];

    #[test]
    fn the_page_loads_nothing_from_elsewhere_and_runs_no_text_as_code() {
        for name in FILES {
            let PageFile { text, .. } = file(name).unwrap();
            // The namespace of SVG is only a name; browsers do not load it.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for word in
                ["http:", "https:", "//cdn", "url(", "innerHTML", "insertAdjacentHTML", "document.write", "eval("]
            {
                assert!(!text.contains(word), "{name}: {word}");
            }
        }
        assert!(file("../app.rs").is_none() && file("index.html").is_none());
    }

    #[test]
    fn the_page_is_small_and_names_its_files() {
        let sizes = FILES.map(|name| file(name).unwrap().text.len());
        assert!(sizes.iter().sum::<usize>() < 64 << 10, "{sizes:?}");
        let page = file("").unwrap().text;
        for name in ["dashboard.css", "dashboard.js"] {
            assert!(page.contains(&format!("\"ui/{name}\"")), "{name}");
        }
        for (importer, name) in [("dashboard.js", "tables.js"), ("dashboard.js", "charts.js")] {
            assert!(file(importer).unwrap().text.contains(&format!("\"./{name}\"")), "{name}");
        }
    }
}
