//! Tests of parts of work trees, and of what version control has besides files.

use super::*;

/// Creates a repository with two applications, of which nothing is committed yet.
fn monorepo() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("mono");
    fs::create_dir(&root).unwrap();
    git(&root, &["init", "-q"]);
    write(&root, ".gitignore", "node_modules\n.env\n*.log\n/apps/web/dist/\n");
    for path in ["index.html", "node_modules/a.js", ".env", "a.log", "dist/app.js"] {
        write(&root, &format!("apps/web/{path}"), "first");
        write(&root, &format!("apps/other/{path}"), "other");
    }
    let web = root.join("apps/web");
    (directory, web)
}

fn git(root: &Path, arguments: &[&str]) -> String {
    let identity = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.com"];
    let local = ["-c", "protocol.file.allow=always"];
    run(root, &[&identity[..], &local, arguments].concat())
}

fn commit(root: &Path) {
    git(root, &["add", "-A"]);
    git(root, &["commit", "-qm", "a change"]);
}

fn warnings(directory: &Path, vcs: Vcs) -> String {
    let source = Source::find(directory, vcs, None).unwrap();
    let mut all: Vec<String> = source.uncommitted.iter().chain(&source.warnings).cloned().collect();
    all.extend(source.write(&mut Vec::new(), u64::MAX).unwrap());
    all.join("\n")
}

#[test]
fn a_part_of_a_work_tree_is_pushed_at_its_revision() {
    let (_directory, web) = monorepo();
    let root = web.join("../..");
    commit(&root);
    write(&web, "index.html", "second");
    commit(&root);
    write(&root, "apps/other/index.html", "changed");
    assert_eq!(warnings(&web, Vcs::Auto), "", "changes elsewhere are none of its own");
    write(&web, "index.html", "third");
    let current = files(&web, Vcs::Auto, None);
    assert_eq!(names(&current), ["index.html"]);
    assert_eq!(current["index.html"].1, "second");
    assert_eq!(files(&web, Vcs::Git, Some("HEAD~1"))["index.html"].1, "first");
    let source = Source::find(&web, Vcs::Auto, None).unwrap();
    assert!(source.note.ends_with(":apps/web (git)"), "{source:?}");
    let said = source.uncommitted.as_deref().unwrap_or_default();
    assert!(said.ends_with(": index.html"), "{source:?}");
    let same = bytes(&web, Vcs::Auto, None).unwrap();
    assert_eq!(same, bytes(&web, Vcs::Auto, None).unwrap());
    // The directory is reached by a link, and from another work tree of the same repository.
    let link = root.join("link");
    symlink(&web, &link).unwrap();
    assert_eq!(files(&link, Vcs::Auto, None), current);
    git(&root, &["worktree", "add", "-q", "../beside", "HEAD~1"]);
    let beside = root.join("../beside/apps/web");
    assert_eq!(files(&beside, Vcs::Auto, None)["index.html"].1, "first");
    // The files are pushed as they are, with the rules from above.
    let as_they_are = files(&web, Vcs::Dir, None);
    assert_eq!(names(&as_they_are), ["index.html"]);
    assert_eq!(as_they_are["index.html"].1, "third");
}

#[test]
fn every_rule_of_git_holds_for_files_as_they_are() {
    let (_directory, web) = monorepo();
    let root = web.join("../..");
    write(&web, "tracked.log", "tracked");
    git(&root, &["add", "-f", "apps/web/tracked.log"]);
    commit(&root);
    write(&root, ".git/info/exclude", "by-repository\n");
    write(&root, "../excludes", "by-user\n/apps/web/anchored\n");
    let excludes = root.join("../excludes").canonicalize().unwrap();
    git(&root, &["config", "core.excludesFile", excludes.to_str().unwrap()]);
    write(&web, "sub/.gitignore", "*\n!keep\n!keep.log\n");
    for path in ["by-repository", "by-user", "anchored", "sub/other", "sub/keep", "sub/keep.log"] {
        write(&web, path, "x");
    }
    fs::create_dir(web.join("empty")).unwrap();
    let expected = ["index.html", "sub/keep", "sub/keep.log", "tracked.log"];
    assert_eq!(names(&files(&web, Vcs::Dir, None)), expected);
    // Our ignore files say more than Git's do, both ways.
    write(&web, ".cortexignore", "!dist\n/sub\n*.log\n!by-user\n");
    let expected = [".cortexignore", "by-user", "dist/app.js", "index.html"];
    assert_eq!(names(&files(&web, Vcs::Dir, None)), expected);
}

#[test]
fn what_is_not_committed_or_even_ignored_is_pushed_as_it_is() {
    let (_directory, web) = monorepo();
    let root = web.join("../..");
    let said = warnings(&web, Vcs::Auto);
    assert!(said.contains("nothing is committed yet") && said.contains("as they are"), "{said}");
    assert_eq!(names(&files(&web, Vcs::Auto, None)), ["index.html"]);
    let whole = error(&root, Vcs::Auto, None);
    assert!(whole.contains("git commit") && whole.contains("--vcs dir"), "{whole}");
    git(&root, &["add", "apps/other"]);
    git(&root, &["commit", "-qm", "one of them"]);
    let said = warnings(&web, Vcs::Auto);
    assert!(said.contains("apps/web is not committed"), "{said}");
    assert_eq!(names(&files(&web, Vcs::Auto, None)), ["index.html"]);
    let chosen = error(&web, Vcs::Auto, Some("HEAD"));
    assert!(chosen.contains("has no directory apps/web"), "{chosen}");
    // The files that a build left there are pushed on purpose.
    assert_eq!(warnings(&web.join("dist"), Vcs::Auto), "");
    assert_eq!(names(&files(&web.join("dist"), Vcs::Auto, None)), ["app.js"]);
}

#[test]
fn ignore_files_of_ours_hold_for_revisions() {
    let (_directory, web) = monorepo();
    let root = web.join("../..");
    write(&web, "docs/a.md", "x");
    write(&web, "big.bin", "x");
    write(&web, "sub/.slugignore", "inner\n");
    write(&web, "sub/inner/deep", "x");
    write(&web, ".slugignore", "docs\n");
    commit(&root);
    let expected = [".slugignore", "big.bin", "index.html", "sub/.slugignore"];
    assert_eq!(names(&files(&web, Vcs::Auto, None)), expected);
    // Advice to write a line into it works before that is committed, and not for the past.
    write(&web, ".cortexignore", "*.bin\n");
    let expected = [".slugignore", "index.html", "sub/.slugignore"];
    assert_eq!(names(&files(&web, Vcs::Auto, None)), expected);
    assert!(files(&web, Vcs::Auto, Some("HEAD")).contains_key("big.bin"));
    assert!(!files(&web, Vcs::Auto, Some("HEAD")).contains_key("docs/a.md"));
}

#[test]
fn submodules_come_along_where_they_are_here() {
    let (directory, web) = monorepo();
    let root = web.join("../..");
    let library = directory.path().join("library");
    write(&library, "lib.py", "library");
    git(&library, &["init", "-q"]);
    commit(&library);
    let url = library.to_str().unwrap();
    git(&root, &["submodule", "--quiet", "add", url, "apps/web/lib"]);
    commit(&root);
    assert_eq!(names(&files(&web, Vcs::Auto, None)), ["index.html", "lib/lib.py"]);
    assert_eq!(names(&files(&web.join("lib"), Vcs::Auto, None)), ["lib.py"]);
    assert_eq!(warnings(&web, Vcs::Auto), "");
    write(&web, "lib/.gitignore", "*.pyc\n");
    write(&web, "lib/lib.pyc", "x");
    let as_they_are = files(&web, Vcs::Dir, None);
    assert_eq!(names(&as_they_are), ["index.html", "lib/.gitignore", "lib/lib.py"]);
    git(&root, &["clone", "-q", ".", "../clone"]);
    let clone = directory.path().join("clone");
    let said = warnings(&clone.join("apps/web"), Vcs::Auto);
    assert!(said.contains("not here are pushed as empty directories: lib. Run `git"), "{said}");
    git(&clone, &["submodule", "--quiet", "update", "--init", "--recursive"]);
    assert_eq!(
        names(&files(&clone.join("apps/web"), Vcs::Auto, None)),
        ["index.html", "lib/lib.py"]
    );
}

#[test]
fn files_that_are_left_out_are_named() {
    let (_directory, web) = monorepo();
    let root = web.join("../..");
    write(&root, ".gitattributes", "/apps/web/tests export-ignore\n*.draft export-ignore\n");
    write(&web, "tests/a.py", "x");
    write(&web, "page.draft", "x");
    write(&web, "ignored.draft", "x");
    write(&web, ".cortexignore", "ignored.draft\n");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    write(&web, "model.bin", pointer);
    commit(&root);
    let said = warnings(&web, Vcs::Auto);
    assert!(
        said.contains("export-ignore is not pushed (--vcs dir pushes it): page.draft, tests/a.py"),
        "{said}"
    );
    assert!(said.contains("model.bin") && said.contains("git lfs pull"), "{said}");
    assert!(!said.contains("ignored.draft"), "{said}");
}

#[test]
fn parts_of_mercurial_and_bazaar_work_trees_are_pushed_at_their_revision() {
    for (program, vcs) in [("hg", Vcs::Hg), ("brz", Vcs::Bzr)] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let web = root.join("apps/web");
        run(root, &[program, "init"]);
        let empty = error(root, vcs, None);
        assert!(empty.contains("nothing is committed yet"), "{empty}");
        for (path, text) in
            [("app.py", "one"), ("sub/x.py", "x"), ("big.bin", "x"), (".cortexignore", "*.bin\n")]
        {
            write(&web, path, text);
            write(root, &format!("apps/other/{path}"), text);
        }
        run(root, &[program, "add"]);
        run(root, &[program, "commit", "-m", "one"]);
        write(&web, "app.py", "two");
        run(root, &[program, "commit", "-m", "two"]);
        write(root, "apps/other/app.py", "changed");
        assert_eq!(warnings(&web, Vcs::Auto), "", "{program}");
        write(&web, "app.py", "three");
        let current = files(&web, Vcs::Auto, None);
        assert_eq!(names(&current), [".cortexignore", "app.py", "sub/x.py"], "{program}");
        assert_eq!(current["app.py"].1, "two");
        let first = if program == "hg" { "0" } else { "1" };
        assert_eq!(files(&web, vcs, Some(first))["app.py"].1, "one");
        let said = warnings(&web, vcs);
        assert!(said.contains("not committed") && said.contains("app.py"), "{said}");
        write(root, "new/index.html", "x");
        assert!(warnings(&root.join("new"), Vcs::Auto).contains("new is not committed"));
    }
}
