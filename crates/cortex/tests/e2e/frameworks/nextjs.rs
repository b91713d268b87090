//! Next.js from npm: the empty project of `create-next-app` (the others fetch fonts from the web
//! when they are built), under another directory's name.

use super::walled_node;
use crate::project::tool;
use crate::tour::Tour;

#[test]
fn a_generated_project_is_toured() {
    let node = walled_node();
    let directory = node.directory.path();
    let options = "--empty --js --no-eslint --no-tailwind --app --no-src-dir --use-npm \
                   --skip-install --disable-git --yes";
    let mut arguments = vec!["--yes", "create-next-app@16", "generated"];
    arguments.extend(options.split_whitespace());
    tool(directory, "npx", &arguments);
    let project = node.path("renamed-next");
    std::fs::rename(node.path("generated"), &project).unwrap();
    Tour {
        name: "next",
        project: &project,
        found: "Nextjs app detected (package.json lists Next.js)",
        first: "Hello World!",
        second: "Hello again!",
        file: "app/page.js",
        scale: 1,
    }
    .run(&node);
}
