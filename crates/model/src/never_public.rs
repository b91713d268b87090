//! What nobody on the web is given, wherever it is: what reveals the platform, keys, dumps and
//! copies that editors leave behind. One list for the router's files and for PHP's front end, which
//! has it as text. By names alone; paths are decoded and relative to what is served.

use crate::release::StaticMount;

/// The kind of directory that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedAs {
    /// It was made to be served: a file called `package.json` is what its author put there.
    Directory,
    /// It is the project itself, or what a build made of it: what describes it is no page.
    Project,
}

/// Names of files, anywhere. Each has at most one `*`, which stands for any characters, and is in
/// lower case.
pub const FILES: &[&str] = &[
    // The platform's own files.
    "cortex.toml",
    "procfile",
    "procfile.*",
    // Variables.
    "*.env",
    "env.local",
    "env.dev",
    "env.development",
    "env.test",
    "env.staging",
    "env.prod",
    "env.production",
    "env.example",
    "env.sample",
    // Keys, and what holds them.
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.ppk",
    "*.kdbx",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "htpasswd",
    "*.htpasswd",
    "*.tfstate",
    "*.tfvars",
    // Databases and what was dumped of them.
    "*.sql",
    "*.dump",
    "*.db",
    "*.db3",
    "*.sqlite",
    "*.sqlite2",
    "*.sqlite3",
    "*.db-wal",
    "*.db-shm",
    "*.db-journal",
    "*.sqlite-wal",
    "*.sqlite-shm",
    "*.sqlite-journal",
    "*.sqlite3-wal",
    "*.sqlite3-shm",
    "*.sqlite3-journal",
    "*.mdb",
    "*.rdb",
    // What editors and people leave beside a file.
    "*.bak",
    "*.backup",
    "*.old",
    "*.orig",
    "*.rej",
    "*.save",
    "*.swp",
    "*.swo",
    "*.swn",
    "*~",
    "#*#",
];

/// Names of files that are kept back too if the project itself is served.
pub const PROJECT_FILES: &[&str] = &[
    "app.json",
    "staticfile",
    // Manifests and locks.
    "package.json",
    "package-lock.json",
    "npm-shrinkwrap.json",
    "npm-debug.log*",
    "yarn.lock",
    "yarn-error.log",
    "pnpm-lock.yaml",
    "pnpm-workspace.yaml",
    "bun.lock",
    "bun.lockb",
    "deno.json",
    "deno.jsonc",
    "deno.lock",
    "bower.json",
    "lerna.json",
    "turbo.json",
    "composer.json",
    "composer.lock",
    "composer.phar",
    "auth.json",
    "gemfile",
    "gemfile.lock",
    "gems.rb",
    "gems.locked",
    "*.gemspec",
    "rakefile",
    "config.ru",
    "requirements*.txt",
    "constraints.txt",
    "pipfile",
    "pipfile.lock",
    "poetry.lock",
    "uv.lock",
    "pdm.lock",
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "tox.ini",
    "environment.yml",
    "runtime.txt",
    "go.mod",
    "go.sum",
    "cargo.toml",
    "cargo.lock",
    "mix.exs",
    "mix.lock",
    "pom.xml",
    "build.gradle",
    "build.gradle.kts",
    "build.sbt",
    "*.cabal",
    "stack.yaml",
    // The files that say how it is built, run and delivered.
    "dockerfile",
    "dockerfile.*",
    "*.dockerfile",
    "containerfile",
    "docker-compose*.yml",
    "docker-compose*.yaml",
    "compose.yml",
    "compose.yaml",
    "makefile",
    "gnumakefile",
    "justfile",
    "vagrantfile",
    "jenkinsfile",
    "gruntfile.*",
    "gulpfile.*",
    "webpack.config.*",
    "vite.config.*",
    "vitest.config.*",
    "rollup.config.*",
    "next.config.*",
    "nuxt.config.*",
    "astro.config.*",
    "svelte.config.*",
    "tailwind.config.*",
    "postcss.config.*",
    "babel.config.*",
    "jest.config.*",
    "eslint.config.*",
    "tsconfig*.json",
    "jsconfig.json",
    "_config.yml",
    "config.toml",
    "hugo.toml",
    "mkdocs.yml",
    "netlify.toml",
    "vercel.json",
    "now.json",
    "fly.toml",
    "render.yaml",
    "heroku.yml",
    "wrangler.toml",
    "web.config",
    "nginx.conf",
    // Settings of programs.
    "config.py",
    "settings.py",
    "local_settings.py",
    "config.rb",
    "config.ini",
    "config.yml",
    "config.yaml",
    "settings.ini",
    "settings.yml",
    "settings.yaml",
    "database.yml",
    "secrets.*",
    "credentials.*",
    "service-account*.json",
    "serviceaccount*.json",
    "*.pyc",
    "*.log",
];

/// Names of directories of which nothing is given, anywhere. Hidden ones are kept back as well.
pub const DIRECTORIES: &[&str] = &["*.bak", "*.backup", "*.old", "*.orig", "*~"];

/// Names of directories that are kept back too if the project itself is served.
pub const PROJECT_DIRECTORIES: &[&str] = &["node_modules", "__pycache__"];

/// The directory of the packages of Composer, of Bundler and of Go. Templates of pages have what
/// browsers load there, too, and only that is given.
pub const PACKAGES: &str = "vendor";

/// The ends of names of what a page loads.
pub const ASSETS: &[&str] = &[
    "css", "js", "mjs", "map", "woff", "woff2", "ttf", "otf", "eot", "svg", "png", "jpg", "jpeg",
    "gif", "webp", "avif", "ico", "wasm",
];

/// The ends of names of pages, which may be about any of these: `dockerfile.html`.
pub const PAGES: &[&str] = &["html", "htm"];

/// The ends of names of packed files: they are what they are inside.
pub const PACKED: &[&str] = &["gz", "bz2", "xz", "zst", "br", "zip", "7z", "rar"];

/// Programs that would be shown instead of run, for a server that runs none of them.
pub const PROGRAMS: &[&str] =
    &["*.php", "*.phtml", "*.php3", "*.php4", "*.php5", "*.php7", "*.php8", "*.phps", "*.phar"];

/// What such a program's name goes on with if it was laid aside, as in `config.php.dist`.
pub const SOURCES: &[&str] = &[".php.", ".php-", ".php_"];

/// The one hidden name that is meant for all.
pub const WELL_KNOWN: &str = ".well-known";

/// Returns whether this file is kept back, here by its path below what is served.
pub fn is_kept_back(path: &str, served: ServedAs) -> bool {
    let is_project = served == ServedAs::Project;
    let mut names = path.split('/').filter(|name| !name.is_empty());
    let Some(file) = names.next_back() else { return false };
    let file = file.to_ascii_lowercase();
    let mut in_packages = false;
    for name in names {
        let name = name.to_ascii_lowercase();
        if is_hidden(&name)
            || is_any(&name, DIRECTORIES)
            || is_project && is_any(&name, PROJECT_DIRECTORIES)
        {
            return true;
        }
        in_packages |= is_project && name == PACKAGES;
    }
    let mut file = file.as_str();
    if is_hidden(file) || in_packages && !has_end(file, ASSETS) {
        return true;
    }
    if has_end(file, PACKED) {
        file = file.rsplit_once('.').map_or(file, |(inside, _)| inside);
    }
    let by_name = is_any(file, FILES)
        || is_any(file, PROGRAMS)
        || !has_end(file, ASSETS) && SOURCES.iter().any(|mark| file.contains(mark))
        || is_project && (is_any(file, PROJECT_FILES) || is_any(file, PROJECT_DIRECTORIES));
    by_name && !has_end(file, PAGES)
}

impl StaticMount {
    /// Returns what is served; `is_built` says that a build made the site, and nothing else runs.
    pub fn served(&self, is_built: bool) -> ServedAs {
        if is_built || self.directory == "." { ServedAs::Project } else { ServedAs::Directory }
    }
}

fn is_hidden(name: &str) -> bool {
    name.starts_with('.') && name != WELL_KNOWN
}

fn is_any(name: &str, patterns: &[&str]) -> bool {
    patterns.iter().any(|pattern| fits(name, pattern))
}

fn fits(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((before, after)) => {
            name.len() >= before.len() + after.len()
                && name.starts_with(before)
                && name.ends_with(after)
        }
    }
}

fn has_end(name: &str, ends: &[&str]) -> bool {
    name.rsplit_once('.').is_some_and(|(_, end)| ends.contains(&end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(served: ServedAs, kept_back: bool, paths: &[&str]) {
        for path in paths {
            assert_eq!(is_kept_back(path, served), kept_back, "{path} in {served:?}");
        }
    }

    #[test]
    fn secrets_are_kept_back_wherever_they_are() {
        for served in [ServedAs::Directory, ServedAs::Project] {
            check(
                served,
                true,
                &[
                    "cortex.toml",
                    "CORTEX.TOML",
                    "sub/cortex.toml",
                    "Procfile",
                    "Procfile.dev",
                    ".env",
                    ".env.production",
                    "env.production",
                    "prod.env",
                    "a/.git/config",
                    ".htaccess",
                    ".well-known/.env",
                    "id.pem",
                    "tls/server.KEY",
                    "id_rsa",
                    "id_ed25519.pub",
                    "dump.sql",
                    "dump.sql.gz",
                    "dump.SQL.ZIP",
                    "data/app.sqlite3",
                    "app.db-wal",
                    "index.html.bak",
                    "index.html~",
                    "#index.html#",
                    ".index.html.swp",
                    "index.php",
                    "lib/page.PHTML",
                    "config.php.dist",
                    "site.old/index.html",
                    "cortex.toml.br",
                ],
            );
            check(
                served,
                false,
                &[
                    "index.html",
                    "robots.txt",
                    "manifest.json",
                    "site.webmanifest",
                    "app-3f2a9c1b.js.map",
                    ".well-known/acme-challenge/x",
                    ".well-known/security.txt",
                    "env.js",
                    "config.js",
                    "config.json",
                    "app.js.br",
                    "app.php.js",
                    "archive.tar.gz",
                    "guides/procfile/index.html",
                    "guides/procfile.html",
                    "install.sh",
                    "ca.crt",
                    "vendor/jquery/jquery.min.js",
                    "key",
                    "docs/environment/index.html",
                    "monkey.html",
                    "sitemap.xml",
                ],
            );
        }
    }

    #[test]
    fn what_describes_a_project_is_kept_back_where_that_is_served() {
        let paths = [
            "app.json",
            "package.json",
            "sub/Package.json",
            "composer.lock",
            "Gemfile",
            "requirements.txt",
            "requirements-dev.txt",
            "Dockerfile",
            "Dockerfile.prod",
            "Makefile",
            "node_modules/left-pad/index.js",
            "vendor/autoload.txt",
            "vendor/composer/installed.json",
            "config.py",
            "npm-debug.log",
            "secrets.yml",
            "vite.config.ts",
        ];
        check(ServedAs::Project, true, &paths);
        check(ServedAs::Directory, false, &paths);
        check(
            ServedAs::Project,
            false,
            &[
                "reference/dockerfile/index.html",
                "dockerfile.html",
                "vendor/a/b.css",
                "secrets/x.html",
            ],
        );
    }

    #[test]
    fn the_kind_of_directory_decides_which_list_holds() {
        let mount = |directory: &str| StaticMount {
            prefix: "/".into(),
            directory: directory.into(),
            fallback: None,
        };
        assert_eq!(mount(".").served(false), ServedAs::Project);
        assert_eq!(mount("public").served(false), ServedAs::Directory);
        assert_eq!(mount("dist").served(true), ServedAs::Project);
    }

    #[test]
    fn patterns_have_one_star_and_small_letters() {
        let lists = [FILES, PROJECT_FILES, DIRECTORIES, PROJECT_DIRECTORIES, PROGRAMS];
        for pattern in lists.concat() {
            assert!(pattern.matches('*').count() <= 1, "{pattern}");
            assert_eq!(pattern, pattern.to_ascii_lowercase());
        }
    }
}
