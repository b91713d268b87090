//! Tests of Node.js projects: what is installed, built and started.

use super::*;

fn check(files: &[(&str, &str)], expected: Result<&str, &str>) {
    let tree = SourceTree::from_pairs(files.iter().copied());
    let recipe = Node.recipe(&tree);
    match (recipe, expected) {
        (Ok(recipe), Ok(command)) => {
            assert_eq!(recipe.processes.values().next().unwrap().command, command, "{files:?}");
        }
        (Err(error), Err(words)) => assert!(error.0.contains(words), "{files:?}: {}", error.0),
        (found, _) => panic!("{files:?}: {found:?}"),
    }
}

fn commands(files: &[(&str, &str)]) -> Vec<String> {
    let recipe = Node.recipe(&SourceTree::from_pairs(files.iter().copied())).unwrap();
    recipe.build.into_iter().map(|step| step.command).collect()
}

#[test]
fn the_start_is_found() {
    let start = r#"{"scripts": {"start": "node bin/www"}}"#;
    check(&[(PACKAGE_JSON, start)], Ok("node bin/www"));
    let hooked = r#"{"scripts": {"start": "node a.js", "prestart": "x"}}"#;
    check(&[(PACKAGE_JSON, hooked)], Ok("npm start"));
    check(&[(PACKAGE_JSON, r#"{"scripts": {"start": "A=1 node a.js"}}"#)], Ok("npm start"));
    check(&[(PACKAGE_JSON, r#"{"main": "./lib"}"#), ("lib/index.js", "")], Ok("node lib/index.js"));
    check(&[(PACKAGE_JSON, r#"{"main": "x.js"}"#), ("server.js", "")], Ok("node server.js"));
    let compiled = r#"{"main": "dist/main.js", "scripts": {"build": "tsc -p ."}}"#;
    check(&[(PACKAGE_JSON, compiled), ("src/main.ts", "")], Ok("node dist/main.js"));
    check(&[(PACKAGE_JSON, "{}")], Err("no start script"));
    check(&[(PACKAGE_JSON, "{")], Err("not valid JSON"));
    check(&[(PACKAGE_JSON, "[]")], Err("no JSON object"));
    check(&[("index.js", "")], Err("package.json is missing"));
}

#[test]
fn the_projects_own_manager_runs_the_start_script() {
    let start = r#"{"scripts": {"start": "tsx a.ts"}}"#;
    let with = |lock| [(PACKAGE_JSON, start), lock];
    check(&with(("pnpm-lock.yaml", "lockfileVersion: '9.0'\n")), Ok("pnpm run start"));
    check(&with(("yarn.lock", "# yarn lockfile v1\n")), Ok("yarn run start"));
    check(&with(("bun.lock", "")), Ok("bun run start"));
    let plain = r#"{"packageManager": "yarn@4.5.0", "scripts": {"start": "node a.js"}}"#;
    check(&[(PACKAGE_JSON, plain)], Ok("yarn node a.js"));
    let linked = (".yarnrc.yml", "nodeLinker: node-modules\n");
    check(&[(PACKAGE_JSON, plain), linked], Ok("node a.js"));
}

#[test]
fn packages_are_installed_by_their_manager() {
    let install = |files: &[(&str, &str)]| {
        let mut files = files.to_vec();
        if !files.iter().any(|(path, _)| *path == PACKAGE_JSON) {
            files.push((PACKAGE_JSON, "{}"));
        }
        let tree = SourceTree::from_pairs(files);
        let packages = packages::of(&tree, "", &Package::read(&tree).unwrap(), false).unwrap();
        packages.steps().into_iter().map(|step| step.command).collect::<Vec<_>>()
    };
    assert!(install(&[("package-lock.json", "")])[0].starts_with("npm ci --omit=dev"));
    assert!(install(&[])[0].starts_with("npm install --omit=dev"));
    let yarn = install(&[("yarn.lock", "")]);
    assert!(yarn[0].ends_with("'yarn@1'") && yarn[1].contains("--frozen-lockfile"), "{yarn:?}");
    let chosen = [(PACKAGE_JSON, r#"{"packageManager": "pnpm@9.1"}"#), ("yarn.lock", "")];
    let pnpm = install(&chosen);
    assert!(pnpm[0].ends_with("'pnpm@9.1'"), "{pnpm:?}");
    assert!(pnpm[1].contains("pnpm install --no-frozen-lockfile --prod"), "{pnpm:?}");
    let berry = install(&[("yarn.lock", "__metadata:\n  version: 8\n")]);
    assert!(berry[0].ends_with("'@yarnpkg/cli-dist@4'"), "{berry:?}");
    assert!(berry[1].contains("GLOBAL_CACHE=false yarn install --immutable"), "{berry:?}");
}

#[test]
fn a_manager_in_the_repository_is_called_by_its_path() {
    let tree = SourceTree::from_pairs([
        (PACKAGE_JSON, r#"{"packageManager": "yarn@4.5.0"}"#),
        (".yarnrc.yml", "yarnPath: .yarn/releases/y.cjs\nnodeLinker: node-modules\n"),
        (".yarn/releases/y.cjs", ""),
    ]);
    let packages = packages::of(&tree, "", &Package::read(&tree).unwrap(), true).unwrap();
    let tool = packages.tool().unwrap().command;
    assert!(tool.contains(".yarn/releases/y.cjs") && !tool.contains("npm install"), "{tool}");
    assert_eq!(packages.path()[0], ".cortex-tools/node_modules/.bin");
}

#[test]
fn a_build_script_is_run_with_development_packages() {
    let files = [
        (PACKAGE_JSON, r#"{"scripts": {"build": "tsc"}, "devDependencies": {}}"#),
        ("index.js", "http.createServer(x).listen(process.env.PORT)"),
    ];
    let recipe = Node.recipe(&SourceTree::from_pairs(files)).unwrap();
    assert!(recipe.build[0].command.contains("--include=dev"));
    assert_eq!(recipe.build[1].command, "npm run build");
}

#[test]
fn development_packages_are_left_out_where_nothing_needs_them() {
    let installs = |scripts: &str| {
        let package = format!(r#"{{"scripts": {{{scripts}}}, "dependencies": {{}}}}"#);
        commands(&[(PACKAGE_JSON, &package)])[0].clone()
    };
    assert!(installs(r#""start": "node a.js""#).contains("--omit=dev"));
    assert!(installs(r#""start": "ts-node a.ts""#).contains("--include=dev"));
    assert!(installs(r#""start": "node a.js", "postinstall": "tsc""#).contains("--include=dev"));
    let procfile = [
        (PACKAGE_JSON, r#"{"dependencies": {}}"#),
        ("Procfile", "web: node a.js\nworker: tsx b.ts\n"),
    ];
    assert!(commands(&procfile)[0].contains("--include=dev"));
}

#[test]
fn herokus_scripts_run_where_heroku_runs_them() {
    let package = r#"{"packageManager": "npm@10.8.2", "scripts": {"start": "node a.js",
        "build": "b", "heroku-prebuild": "p", "heroku-postbuild": "x", "heroku-cleanup": "c"}, "dependencies": {}}"#;
    let commands = commands(&[(PACKAGE_JSON, package)]);
    assert!(commands[0].ends_with("'npm@10.8.2'"), "{commands:?}");
    assert_eq!(commands[1], "npm run heroku-prebuild");
    assert!(commands[2].starts_with("npm install"), "{commands:?}");
    assert_eq!(commands[3..], ["npm run heroku-postbuild", "npm run heroku-cleanup"]);
}

#[test]
fn public_files_are_taken_over_only_when_they_come_first() {
    let mounts = |code: &str| {
        let files = [(PACKAGE_JSON, "{}"), ("index.js", code), ("public/a.css", "")];
        statics(&SourceTree::from_pairs(files)).len()
    };
    assert_eq!(mounts("app.use(express.static('public'));\n"), 1);
    assert_eq!(mounts("app.use(login);\napp.use(express.static('public'));\n"), 0);
    assert_eq!(mounts("app.use('/files', express.static('public'));\n"), 0);
}

#[test]
fn a_port_that_another_file_reads_is_no_remark() {
    let package = ("package.json", r#"{"scripts": {"start": "node server.js"}}"#);
    let server = ("server.js", "createServer(x).listen(settings.port)");
    let notes = |files: &[(&str, &str)]| {
        let tree = SourceTree::from_pairs(files.iter().copied());
        Node.recipe(&tree).unwrap().notes.join("; ")
    };
    assert!(notes(&[package, server]).contains("never reads process.env.PORT"));
    let settings = ("lib/settings.js", "exports.port = process.env.PORT");
    assert_eq!(notes(&[package, server, settings]), "");
}
