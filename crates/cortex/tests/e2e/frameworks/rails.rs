//! Rails on Debian's gems, without any network: `rails new`, a scaffold, its migration and SQLite,
//! under another directory's name. Rows survive pushes, rollbacks and restarts.

use std::path::{Path, PathBuf};

use super::walled_node;
use crate::journey::Journey;
use crate::outside::Site;
use crate::project::{edit, of_files, tool};

pub fn generate(directory: &Path) -> PathBuf {
    let options = ["--skip-javascript", "--skip-webpack-install", "--skip-bundle", "--skip-git"];
    let mut arguments = vec!["new", "generated"];
    arguments.extend(options);
    tool(directory, "rails", &arguments);
    let project = directory.join("bookshelf");
    std::fs::rename(directory.join("generated"), &project).unwrap();
    project
}

pub fn add_books(project: &Path) {
    let scaffold = ["exec", "rails", "generate", "scaffold", "book", "title:string"];
    tool(project, "bundle", &["config", "set", "--local", "prefer_local", "true"]);
    tool(project, "bundle", &["install", "--local", "--quiet"]);
    tool(project, "bundle", &scaffold);
    std::fs::remove_dir_all(project.join(".bundle")).unwrap();
}

/// Adds a book as a browser does: the form's token and the session's cookie go along.
fn add_book(site: &Site, title: &str) {
    let form = site.get("/books/new");
    let token = form.body.split("name=\"authenticity_token\" value=\"").nth(1);
    let token = token.and_then(|rest| rest.split('"').next());
    let token = token.unwrap_or_else(|| panic!("a token in the form: {form:?}"));
    let escaped: String = token.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let body = format!("authenticity_token={escaped}&book%5Btitle%5D={}", title.replace(' ', "+"));
    let answer = site.post_form("/books", &[("cookie", &form.cookies.join("; "))], &body);
    assert_eq!(answer.status, 302, "{answer:?}");
}

#[test]
fn a_scaffold_with_sqlite_goes_through_the_journey() {
    let mut node = walled_node();
    let project = generate(node.directory.path());
    add_books(&project);
    let mut titles = Vec::new();
    Journey {
        name: "bookshelf",
        project: &project,
        path: "/books",
        first: "<h1>Books</h1>",
        second: "<h1>All the books</h1>",
        edit: &|project| {
            let view = project.join("app/views/books/index.html.erb");
            edit(&view, "<h1>Books</h1>", "<h1>All the books</h1>");
            // A second migration comes along.
            of_files(project, &[("db/migrate/20990101000000_add_author.rb", MIGRATION)]);
        },
        spoil: &|project| {
            of_files(project, &[("config/initializers/spoilt.rb", "raise 'spoilt on purpose'\n")]);
        },
        complaint: "spoilt on purpose",
        // Puma has this many threads.
        in_hand_max: 4,
    }
    .run(&mut node, &mut |site| {
        let title = format!("Volume {}", titles.len() + 1);
        add_book(site, &title);
        titles.push(title);
        let page = site.get("/books");
        for title in &titles {
            page.assert_ok(title);
        }
    });
    node.up();
    node.await_ready("bookshelf", "web", 2);
    let site = Site { host: "bookshelf.localhost".into(), port: node.http_port };
    for title in &titles {
        site.get("/books").assert_ok(title);
    }
}

const MIGRATION: &str = "class AddAuthor < ActiveRecord::Migration[6.1]
  def change
    add_column :books, :author, :string
  end
end
";
