//! Makes the document: of the table, the signatures of the handlers, the types, and what is said of
//! each operation.

use std::collections::{BTreeMap, BTreeSet};

use access_core::{Reach, Right};
use axum::http::StatusCode;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::operations::{Content, OPERATIONS, Operation};
use super::signature::{AnswerShape, BodyShape, Generators, Signature};
use crate::table::{Recording, TableRow};
use api_types::ProblemBody;

const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";
/// Refusals that any request may get: at the door, of a wrong host, and when the node cannot.
const ALWAYS: &[u16] = &[401, 403, 421, 429, 500, 503];

/// Returns the document of these routes, whose problems have these codes.
pub fn document(rows: &[TableRow], codes: &BTreeSet<String>) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generators = Generators {
        asked: settings.clone().for_deserialize().into_generator(),
        answered: settings.for_serialize().into_generator(),
    };
    let problem = generators.answered.subschema_for::<ProblemBody>();
    let (mut paths, mut refusals) = (Map::new(), BTreeSet::new());
    for row in rows {
        let route = format!("{} {}", row.method, row.path);
        let operation = OPERATIONS.iter().find(|one| one.route == route);
        let operation = operation.unwrap_or_else(|| panic!("operations.rs lacks {route}"));
        let signature = (row.description.0)(&mut generators);
        let refused = refused(row, &signature, operation);
        refusals.extend(refused.iter().copied());
        let written = describe(row, signature, operation, &refused, &mut generators);
        let path = paths.entry(row.path).or_insert_with(|| json!({}));
        path[row.method.to_ascii_lowercase()] = written;
    }
    let mut schemas = schemas(generators);
    schemas["ProblemBody"]["properties"]["code"]["x-extensible-enum"] = json!(codes);
    let refusals: BTreeMap<String, Value> = refusals
        .into_iter()
        .map(|status| (status.to_string(), answer(phrase(status), PROBLEM, &problem)))
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Cortex",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The HTTP API of a Cortex node, on its UNIX socket and, with a token, \
                over TLS on the node port. Fields are only ever added: leave out what you do not \
                know. A node that only keeps the store lacks the applications and what belongs to \
                them.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token of a user, as `cortex tokens create` makes it. The owner \
                    of the machine needs none on the socket.",
            }},
            "responses": refusals,
            "schemas": schemas,
        },
    })
}

/// Returns the schemas by name. Where a type looks different to senders and receivers, the one that
/// is sent is to have another name.
fn schemas(mut generators: Generators) -> Value {
    let mut schemas = generators.answered.take_definitions(true);
    for (name, schema) in generators.asked.take_definitions(true) {
        let known = schemas.entry(name.clone()).or_insert_with(|| schema.clone());
        assert_eq!(*known, schema, "{name} looks different to senders and receivers");
    }
    Value::Object(schemas)
}

fn phrase(status: u16) -> &'static str {
    StatusCode::from_u16(status).unwrap().canonical_reason().unwrap()
}

fn answer(description: &str, kind: &str, schema: impl serde::Serialize) -> Value {
    json!({"description": description, "content": {kind: {"schema": schema}}})
}

/// Returns the statuses with which the operation refuses.
fn refused(row: &TableRow, signature: &Signature, operation: &Operation) -> BTreeSet<u16> {
    let mut refused: BTreeSet<u16> = ALWAYS.iter().chain(operation.refusals).copied().collect();
    if row.path.contains('{') {
        refused.extend([400, 404, 422]);
    }
    if signature.query.is_some() {
        refused.extend([400, 422]);
    }
    if !matches!(signature.body, BodyShape::None) {
        refused.extend([400, 413, 422]);
    }
    if row.recording == Recording::Change || matches!(row.method, "PUT" | "DELETE") {
        refused.extend([409, 507]);
    }
    if matches!(signature.body, BodyShape::Bytes) {
        refused.insert(507);
    }
    if row.right == Right::RawStore {
        refused.insert(501);
    }
    refused
}

fn describe(
    row: &TableRow,
    signature: Signature,
    operation: &Operation,
    refused: &BTreeSet<u16>,
    generators: &mut Generators,
) -> Value {
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [row.path.split('/').nth(2).unwrap().trim_end_matches(".json")],
        "x-cortex-right": right(row.right),
    });
    let parameters: Vec<Value> = path_parameters(row.path)
        .chain(signature.query.iter().flat_map(|query| query_parameters(query.as_value())))
        .collect();
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(body) = body(signature.body) {
        described["requestBody"] = body;
    }
    let success = match (signature.answer, operation.content) {
        (AnswerShape::Json(schema), None) => answer("", JSON, schema),
        (AnswerShape::Text, None) => answer("", "text/plain", json!({"type": "string"})),
        (AnswerShape::Open, Some(Content::Bytes)) => {
            answer("", "application/octet-stream", json!({}))
        }
        (AnswerShape::Open, Some(Content::Object)) => answer("", JSON, json!({"type": "object"})),
        (AnswerShape::Open, Some(Content::Lines(schema))) => {
            let schema = schema(&mut generators.answered);
            answer("", "application/x-ndjson", schema)
        }
        (AnswerShape::Open, Some(Content::Upgrade)) => json!({}),
        (answer, _) => panic!("what {} answers is not said, or twice: {answer:?}", row.path),
    };
    let mut responses = Map::new();
    for status in operation.success {
        let mut success = success.clone();
        success["description"] = phrase(*status).into();
        responses.insert(status.to_string(), success);
    }
    for status in refused {
        let reference = format!("#/components/responses/{status}");
        responses.insert(status.to_string(), json!({"$ref": reference}));
    }
    described["responses"] = responses.into();
    described
}

/// Returns the right as docs/access.md has it: what it lets one do, and the least role there.
fn right(right: Right) -> Value {
    let on = match right.reach() {
        Reach::Anyone => return json!({"to": right.words(), "on": "anyone"}),
        Reach::Invited => return json!({"to": right.words(), "on": "invitation"}),
        Reach::Machine => return json!({"to": right.words(), "on": "machine"}),
        Reach::Application => "application",
        Reach::NewApplication => "platform or team",
        Reach::Platform => "platform",
    };
    json!({"to": right.words(), "on": on, "role": right.role_min().to_string()})
}

fn path_parameters(path: &str) -> impl Iterator<Item = Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    names.map(|name| {
        let schema = json!({"type": "string", "minLength": 1});
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    })
}

/// Returns the fields of a query as parameters.
fn query_parameters(query: &Value) -> Vec<Value> {
    let required =
        |name: &String| query["required"].as_array().is_some_and(|all| all.contains(&json!(name)));
    let fields = query["properties"].as_object().into_iter().flatten();
    let parameter = |(name, schema): (&String, &Value)| {
        let mut schema = without_null(schema);
        let fields = schema.as_object_mut().unwrap();
        fields.remove("default");
        let description = fields.remove("description");
        let mut parameter = json!({"name": name, "in": "query", "schema": schema});
        if required(name) {
            parameter["required"] = true.into();
        }
        if let Some(description) = description {
            parameter["description"] = description;
        }
        parameter
    };
    fields.map(parameter).collect()
}

/// Returns the schema of what is there, as a query has no null.
fn without_null(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(types) = schema["type"].as_array_mut() {
        types.retain(|one| one != "null");
        if let [only] = &types[..] {
            schema["type"] = only.clone();
        }
    }
    schema
}

fn body(shape: BodyShape) -> Option<Value> {
    let (kind, schema, required) = match shape {
        BodyShape::None => return None,
        BodyShape::Json(schema) => (JSON, schema.to_value(), true),
        BodyShape::OptionalJson(schema) => (JSON, schema.to_value(), false),
        BodyShape::Bytes => ("application/octet-stream", json!({}), true),
    };
    Some(json!({"required": required, "content": {kind: {"schema": schema}}}))
}

/// Writes the document so that a change is read well: a line for each operation and each schema.
pub fn written(document: &Value) -> String {
    let mut text = String::from("{\n");
    let top = document.as_object().unwrap();
    for (at, (name, value)) in top.iter().enumerate() {
        let end = if at + 1 == top.len() { "\n" } else { ",\n" };
        let depth = if name == "paths" || name == "components" { 2 } else { 0 };
        text += &format!("{}:{}{end}", json!(name), nested(value, depth));
    }
    text + "}\n"
}

fn nested(value: &Value, depth: usize) -> String {
    match value.as_object() {
        Some(fields) if depth > 0 => {
            let lines = fields
                .iter()
                .map(|(name, value)| format!("{}:{}", json!(name), nested(value, depth - 1)));
            format!("{{\n{}\n}}", lines.collect::<Vec<_>>().join(",\n"))
        }
        _ => value.to_string(),
    }
}
