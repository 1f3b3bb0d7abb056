// Filters over lists and dictionaries.
#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"

namespace tandem::jinja {
namespace {

Value generator(Interpreter& in, std::vector<Value> items) {
  return make_sequence(Kind::kGenerator, std::move(items), in.budget());
}

Value list_of(Interpreter& in, std::vector<Value> items) {
  return make_sequence(Kind::kList, std::move(items), in.budget());
}

// Reads item.a.b.0 given "a.b.0", 0, or nothing.
class Getter {
 public:
  Getter(Interpreter& in, const Value* path, const Value* otherwise = nullptr) : in_(in), otherwise_(otherwise) {
    if (path == nullptr || path->is(Kind::kNone)) return;
    if (!path->is(Kind::kString)) {
      parts_.push_back(*path);
      return;
    }
    const std::string& text = path->as_text().bytes;
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
      end = text.find('.', begin);
      add_part(text.substr(begin, end - begin));
    }
    in_.budget().check_items(parts_.size());
  }

  Value get(Value item) const {
    for (const Value& part : parts_) {
      item = in_.item(item, part);
      if (otherwise_ != nullptr && !otherwise_->is(Kind::kNone) && item.is(Kind::kUndefined)) item = *otherwise_;
    }
    return item;
  }

  // For comparing: strings in lower case unless case matters.
  Value key(const Value& item, bool is_case_sensitive) const {
    Value value = get(item);
    if (is_case_sensitive || !value.is(Kind::kString)) return value;
    return Value::text(map_case(value.as_text(), "lower", in_.budget()));
  }

 private:
  void add_part(const std::string& part) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool is_number = error == std::errc() && end == part.data() + part.size() && part[0] != '-';
    parts_.push_back(is_number ? Value::integer(number) : Value::text(part));
  }

  Interpreter& in_;
  const Value* otherwise_;
  std::vector<Value> parts_;
};

using Keyed = std::pair<Value, Value>;  // key, item

void sort_by_key(Interpreter& in, std::vector<Keyed>* items, bool is_reversed) {
  // Python keeps equal items in order also when it sorts downwards.
  std::stable_sort(items->begin(), items->end(), [&](const Keyed& a, const Keyed& b) {
    return is_reversed ? less(b.first, a.first, in.budget()) : less(a.first, b.first, in.budget());
  });
}

std::vector<Value> items_of(std::vector<Keyed> keyed) {
  std::vector<Value> items;
  for (Keyed& pair : keyed) items.push_back(std::move(pair.second));
  return items;
}

Value length(Interpreter&, Args& args) {
  const Params params("length", args, {"obj"}, 1);
  const Value& value = params.at(0);
  if (value.is(Kind::kUndefined)) return Value::integer(0);
  if (value.is(Kind::kString)) return Value::integer(value.as_text().length);
  if (value.is(Kind::kDict)) return Value::integer(static_cast<int64_t>(value.as_dict().items.size()));
  if (!value.is_sequence() || value.is(Kind::kGenerator)) {
    fail_type(std::string("object of type '") + type_name(value) + "' has no len()");
  }
  return Value::integer(static_cast<int64_t>(value.as_sequence().items.size()));
}

Value default_filter(Interpreter&, Args& args) {
  const Params params("default", args, {"value", "default_value", "boolean"}, 1);
  const bool replaces = params.at(0).is(Kind::kUndefined) || (params.flag(2, false) && !truthy(params.at(0)));
  if (!replaces) return params.at(0);
  return params.has(1) ? params.at(1) : Value::text("");
}

Value join(Interpreter& in, Args& args) {
  const Params params("join", args, {"value", "d", "attribute"}, 1);
  std::vector<Value> items = iterate(params.at(0), in.budget());
  const Getter getter(in, params.get(2));
  for (Value& item : items) item = getter.get(item);
  const TextPtr separator = params.has(1) ? to_text(params.at(1), in.budget()) : make_text("");
  return Value::text(join_texts(items, *separator, in.budget()));
}

Value first(Interpreter& in, Args& args) {
  const Params params("first", args, {"seq"}, 1);
  const Value& value = params.at(0);
  if (value.is(Kind::kGenerator)) {  // takes one item, leaves the others
    Sequence& sequence = value.as_sequence();
    if (sequence.position < sequence.items.size()) return sequence.items[sequence.position++];
  } else if (value.is(Kind::kString) && value.as_text().length > 0) {
    return in.item(value, Value::integer(0));
  } else {
    const std::vector<Value> items = iterate(value, in.budget());
    if (!items.empty()) return items.front();
  }
  return Value::undefined("No first item, sequence was empty.");
}

Value last(Interpreter& in, Args& args) {
  const Params params("last", args, {"seq"}, 1);
  const Value& value = params.at(0);
  if (value.is(Kind::kGenerator)) fail_type("'generator' object is not reversible");
  if (value.is(Kind::kString) && value.as_text().length > 0) return in.item(value, Value::integer(-1));
  const std::vector<Value> items = iterate(value, in.budget());
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value list(Interpreter& in, Args& args) {
  const Params params("list", args, {"value"}, 1);
  return list_of(in, iterate(params.at(0), in.budget()));
}

Value reverse(Interpreter& in, Args& args) {
  const Params params("reverse", args, {"value"}, 1);
  std::vector<Value> items = iterate(params.at(0), in.budget());
  std::reverse(items.begin(), items.end());
  if (params.at(0).is(Kind::kString)) return Value::text(join_texts(items, Text(), in.budget()));
  return params.at(0).is(Kind::kGenerator) ? list_of(in, std::move(items)) : generator(in, std::move(items));
}

Value sort(Interpreter& in, Args& args) {
  const Params params("sort", args, {"value", "reverse", "case_sensitive", "attribute"}, 1);
  std::vector<Value> paths;
  if (params.has(3) && params.at(3).is(Kind::kString)) {
    const TextPtr comma = make_text(",");
    Args split;
    split.positional.push_back(Value::text(comma));
    paths = find_text_method("split")(in, params.at(3).as_text(), split).as_sequence().items;
  } else {
    paths.push_back(params.has(3) ? params.at(3) : Value::none());
  }
  std::vector<Getter> getters;
  for (const Value& path : paths) getters.emplace_back(in, &path);
  std::vector<Keyed> keyed;
  for (Value& item : iterate(params.at(0), in.budget())) {
    std::vector<Value> key;
    for (const Getter& getter : getters) key.push_back(getter.key(item, params.flag(2, false)));
    keyed.emplace_back(key.size() == 1 ? key[0] : make_sequence(Kind::kList, key, in.budget()), std::move(item));
  }
  sort_by_key(in, &keyed, params.flag(1, false));
  return list_of(in, items_of(std::move(keyed)));
}

Value unique(Interpreter& in, Args& args) {
  const Params params("unique", args, {"value", "case_sensitive", "attribute"}, 1);
  const Getter getter(in, params.get(2));
  std::unordered_set<std::string> seen;
  std::vector<Value> kept;
  for (Value& item : iterate(params.at(0), in.budget())) {
    if (seen.insert(hash_key(getter.key(item, params.flag(1, false)), in.budget())).second) kept.push_back(item);
  }
  return generator(in, std::move(kept));
}

Value extreme(Interpreter& in, Args& args, bool is_max) {
  const Params params(is_max ? "max" : "min", args, {"value", "case_sensitive", "attribute"}, 1);
  const Getter getter(in, params.get(2));
  const std::vector<Value> items = iterate(params.at(0), in.budget());
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key = getter.key(items[0], params.flag(1, false));
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = getter.key(items[i], params.flag(1, false));
    if (is_max ? !less(best_key, key, in.budget()) : !less(key, best_key, in.budget())) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

Value min(Interpreter& in, Args& args) { return extreme(in, args, false); }
Value max(Interpreter& in, Args& args) { return extreme(in, args, true); }

Value sum(Interpreter& in, Args& args) {
  const Params params("sum", args, {"iterable", "attribute", "start"}, 1);
  const Getter getter(in, params.get(1));
  Value total = params.has(2) ? params.at(2) : Value::integer(0);
  for (const Value& item : iterate(params.at(0), in.budget())) {
    total = binary_operation("+", total, getter.get(item), in.budget());
  }
  return total;
}

const Value& mapping(const Params& params) {
  if (!params.at(0).is(Kind::kDict)) fail_type("Can only get item pairs from a mapping.");
  return params.at(0);
}

Value items_filter(Interpreter& in, Args& args) {
  const Params params("items", args, {"value"}, 1);
  std::vector<Value> pairs;
  if (params.at(0).is(Kind::kUndefined)) return generator(in, {});
  for (const auto& [key, value] : mapping(params).as_dict().items) {
    pairs.push_back(make_sequence(Kind::kTuple, {key, value}, in.budget()));
  }
  return generator(in, std::move(pairs));
}

Value dictsort(Interpreter& in, Args& args) {
  const Params params("dictsort", args, {"value", "case_sensitive", "by", "reverse"}, 1);
  if (params.at(0).is(Kind::kUndefined)) fail_undefined(params.at(0));
  const std::string by = params.has(2) ? params.text(2).bytes : "key";
  if (by != "key" && by != "value") fail_type("You can only sort by either \"key\" or \"value\"");
  const Getter getter(in, nullptr);
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : mapping(params).as_dict().items) {
    keyed.emplace_back(getter.key(by == "key" ? key : value, params.flag(1, false)),
                       make_sequence(Kind::kTuple, {key, value}, in.budget()));
  }
  sort_by_key(in, &keyed, params.flag(3, false));
  return list_of(in, items_of(std::move(keyed)));
}

Value groupby(Interpreter& in, Args& args) {
  const Params params("groupby", args, {"value", "attribute", "default", "case_sensitive"}, 2);
  const bool is_case_sensitive = params.flag(3, false);
  const Getter getter(in, params.get(1), params.get(2));
  std::vector<Keyed> keyed;
  for (Value& item : iterate(params.at(0), in.budget())) keyed.emplace_back(getter.key(item, is_case_sensitive), item);
  sort_by_key(in, &keyed, false);
  std::vector<Value> groups;
  for (size_t begin = 0, end = 0; begin < keyed.size(); begin = end) {
    std::vector<Value> members;
    for (end = begin; end < keyed.size() && equal(keyed[end].first, keyed[begin].first, in.budget()); ++end) {
      members.push_back(keyed[end].second);
    }
    if (end == begin) ++end;  // a key that is not equal to itself (NaN)
    Value grouper = is_case_sensitive || members.empty() ? keyed[begin].first : getter.get(members[0]);
    groups.push_back(make_sequence(Kind::kTuple, {std::move(grouper), list_of(in, std::move(members))}, in.budget(),
                                   "group"));
  }
  return list_of(in, std::move(groups));
}

// Calls filter or test `args.positional[at]` with the arguments after it.
Args call_args(const Value& item, const Args& args, size_t at) {
  Args inner;
  inner.positional.push_back(item);
  for (size_t i = at + 1; i < args.positional.size(); ++i) inner.positional.push_back(args.positional[i]);
  inner.named = args.named;
  return inner;
}

const std::string& name_at(const Args& args, size_t at, const char* what) {
  if (!args.positional[at].is(Kind::kString)) fail_type(std::string(what) + " needs a name as a string");
  return args.positional[at].as_text().bytes;
}

Value map(Interpreter& in, Args& args) {
  std::vector<Value> out;
  if (args.positional.size() == 1 && !args.named.empty()) {
    const Params params("map", args, {"value", "attribute", "default"}, 2);
    const Getter getter(in, params.get(1), params.get(2));
    for (const Value& item : iterate(params.at(0), in.budget())) out.push_back(getter.get(item));
    return generator(in, std::move(out));
  }
  if (args.positional.size() < 2) fail_type("map requires a filter argument");
  const std::string& name = name_at(args, 1, "map()");
  for (const Value& item : iterate(args.positional[0], in.budget())) {
    Args inner = call_args(item, args, 1);
    out.push_back(in.filter(name, inner));
  }
  return generator(in, std::move(out));
}

Value choose(Interpreter& in, Args& args, bool keeps, bool by_attribute) {
  const size_t at = by_attribute ? 2 : 1;  // where the test's name stands
  if (args.positional.empty()) fail_type("select() needs a value");
  if (by_attribute && args.positional.size() < 2) fail_type("Missing parameter for attribute name");
  const Getter getter(in, by_attribute ? &args.positional[1] : nullptr);
  std::vector<Value> kept;
  for (Value& item : iterate(args.positional[0], in.budget())) {
    const Value subject = getter.get(item);
    bool holds = false;
    if (args.positional.size() > at) {
      Args inner = call_args(subject, args, at);
      holds = in.test(name_at(args, at, "select()"), inner);
    } else {
      holds = truthy(subject);
    }
    in.budget().charge(1);
    if (holds == keeps) kept.push_back(std::move(item));
  }
  return generator(in, std::move(kept));
}

Value select(Interpreter& in, Args& args) { return choose(in, args, true, false); }
Value reject(Interpreter& in, Args& args) { return choose(in, args, false, false); }
Value selectattr(Interpreter& in, Args& args) { return choose(in, args, true, true); }
Value rejectattr(Interpreter& in, Args& args) { return choose(in, args, false, true); }

Value attr(Interpreter& in, Args& args) {
  const Params params("attr", args, {"obj", "name"}, 2);
  const std::string& name = params.text(1).bytes;
  // Attributes only, never items: a dictionary's keys are not found.
  const bool is_item = params.at(0).is(Kind::kDict) && params.at(0).as_dict().find(name) != nullptr;
  if (!is_item) return in.attribute(params.at(0), name);
  Value empty = Value::dict({});
  return in.attribute(empty, name).is(Kind::kUndefined) ? missing_attribute(params.at(0), name)
                                                        : in.attribute(params.at(0), name);
}

Value batch(Interpreter& in, Args& args) {
  const Params params("batch", args, {"value", "linecount", "fill_with"}, 2);
  const int64_t size = params.integer(1, 0);
  std::vector<Value> rows;
  std::vector<Value> row;
  for (Value& item : iterate(params.at(0), in.budget())) {
    if (static_cast<int64_t>(row.size()) == size) rows.push_back(list_of(in, std::exchange(row, {})));
    row.push_back(std::move(item));
  }
  const bool fills = params.has(2) && !params.at(2).is(Kind::kNone);
  if (!row.empty()) {
    if (fills && size > 0) in.budget().check_items(static_cast<size_t>(size));
    while (fills && static_cast<int64_t>(row.size()) < size) row.push_back(params.at(2));
    rows.push_back(list_of(in, std::move(row)));
  }
  return generator(in, std::move(rows));
}

Value slice(Interpreter& in, Args& args) {
  const Params params("slice", args, {"value", "slices", "fill_with"}, 2);
  const int64_t slices = params.integer(1, 0);
  if (slices < 1) fail_type("slice() needs at least 1 slice");
  const std::vector<Value> items = iterate(params.at(0), in.budget());
  in.budget().check_items(static_cast<size_t>(slices));
  const size_t n = static_cast<size_t>(slices);
  const size_t each = items.size() / n;
  const size_t extra = items.size() % n;
  const bool fills = params.has(2) && !params.at(2).is(Kind::kNone);
  std::vector<Value> columns;
  size_t at = 0;
  for (size_t i = 0; i < n; ++i) {
    std::vector<Value> column;
    for (size_t k = 0; k < each + (i < extra ? 1 : 0); ++k) column.push_back(items[at++]);
    if (fills && i >= extra) column.push_back(params.at(2));
    columns.push_back(list_of(in, std::move(column)));
  }
  return generator(in, std::move(columns));
}

}  // namespace

const FunctionTable& list_filters() {
  static const auto* kFilters = new FunctionTable{
      {"length", length}, {"count", length}, {"default", default_filter}, {"d", default_filter}, {"join", join},
      {"first", first}, {"last", last}, {"list", list}, {"reverse", reverse}, {"sort", sort}, {"unique", unique},
      {"min", min}, {"max", max}, {"sum", sum}, {"items", items_filter}, {"dictsort", dictsort},
      {"groupby", groupby}, {"map", map}, {"select", select}, {"reject", reject}, {"selectattr", selectattr},
      {"rejectattr", rejectattr}, {"attr", attr}, {"batch", batch}, {"slice", slice},
  };
  return *kFilters;
}

}  // namespace tandem::jinja
